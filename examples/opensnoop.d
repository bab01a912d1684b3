#!/usr/bin/env -S kdtrace -s
/*
 * Trace files as programs open them: process, descriptor, error and path.
 *
 *	opensnoop.d -k KERNEL -c '$ cat /etc/motd; cat /nope'
 */
#pragma D option quiet

syscall::open:entry, syscall::openat:entry
{
	self->path = copyinstr(probefunc == "open" ? arg0 : arg1);
}

syscall::open:return, syscall::openat:return
/self->path != NULL/
{
	printf("%6d %-12s %3d %3d %s\n", pid, execname, (int)arg0, errno, self->path);
	self->path = NULL;
}
