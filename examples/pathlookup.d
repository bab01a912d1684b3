#!/usr/bin/env -S kdtrace -s
/*
 * Every path that the kernel is asked for, and what became of it.
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
	printf("%-12s %-30s %s\n", execname, self->path, arg0 == 0 ? "there" : "error");
	self->path = 0;
}
