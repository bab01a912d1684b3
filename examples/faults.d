#!/usr/bin/env -S kdtrace -s
/*
 * Which code touches pages that are not there: of programs by their functions.
 *
 *	faults.d -k KERNEL -c '$ work faults 20; cat /etc/motd'
 */
#pragma D option quiet

fbt::vm_fault_trap:entry
/execname == "work" || execname == "cat"/
{
	@where[execname, ufunc(uregs[R_PC])] = count();
}

END
{
	printf("%-10s %-30s %8s\n", "COMMAND", "FUNCTION", "FAULTS");
	printa("%-10s %-30A %@8d\n", @where);
}
