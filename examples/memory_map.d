#!/usr/bin/env -S kdtrace -s
/*
 * Memory allocations in a boot, by type of memory: number, total, largest and mean size.
 *
 *	memory_map.d -k KERNEL --trap-path direct -c boot
 */
#pragma D option quiet

fbt::malloc:entry
{
	this->name = stringof(args[1]->ks_shortdesc);
	@calls[this->name] = count();
	@bytes[this->name] = sum(args[0]);
	@largest[this->name] = max(args[0]);
	@mean[this->name] = avg(args[0]);
}

END
{
	printf("%-20s %8s %12s %10s %8s\n", "TYPE", "CALLS", "BYTES", "LARGEST", "MEAN");
	printa("%-20s %@8d %@12d %@10d %@8d\n", @calls, @bytes, @largest, @mean);
}
