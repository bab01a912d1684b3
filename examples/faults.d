#!/usr/bin/env -S kdtrace -s
/*
 * Count the page faults of two commands, by the function of the program that causes them.
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
