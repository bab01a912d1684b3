#!/usr/bin/env -S kdtrace -s
/*
 * Lookups in the kernel's name cache: hits and misses by program, and the names that were missing.
 *
 *	vfscache.d -k KERNEL -c '$ cat /etc/motd /nope; ls /bin; cat /etc/motd'
 */
#pragma D option quiet

vfs:namecache:lookup:hit
{
	@["hit", execname] = count();
}

vfs:namecache:lookup:hit-negative
{
	@["negative hit", execname] = count();
}

vfs:namecache:lookup:miss
{
	@["miss", execname] = count();
	@names[stringof(arg1)] = count();
}

vfs:fplookup:lookup:done
{
	@["lockless lookup", execname] = count();
}

END
{
	printa("%-24s %-16s %@8d\n", @);
	printf("\nMISSED\n");
	printa("%-40s %@8d\n", @names);
}
