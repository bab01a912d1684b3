#!/usr/bin/env -S kdtrace -s
/*
 * Trace path lookups in the kernel: program, path and result.
 *
 *	pathlookup.d -k KERNEL -c '$ cat /etc/motd /nope; mkdir /tmp/d; rmdir /tmp/d'
 */
#pragma D option quiet

vfs:namei:lookup:entry
{
	self->path = stringof(arg1);
}

vfs:namei:lookup:return
/self->path != NULL/
{
	printf("%-12s %-30s %s\n", execname, self->path, arg0 == 0 ? "found" : "error");
	self->path = 0;
}
