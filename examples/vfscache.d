#!/usr/bin/env -S kdtrace -s
/*
 * The name cache: hits and misses, and which names were not there.
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
	@["known not to be there", execname] = count();
}

vfs:namecache:lookup:miss
{
	@["miss", execname] = count();
	@names[stringof(arg1)] = count();
}

vfs:fplookup:lookup:done
{
	@["looked up without locks", execname] = count();
}

END
{
	printa("%-24s %-16s %@8d\n", @);
	printf("\nMISSED\n");
	printa("%-40s %@8d\n", @names);
}
