#!/usr/bin/env -S kdtrace -s
/*
 * System calls: number by program, distribution of times, and failures with their errors.
 *
 *	syscalls.d -k KERNEL -c '$ cat /etc/motd | wc; cat /nope'
 */
#pragma D option quiet

syscall:::entry
{
	self->began = timestamp;
	@calls["CALLS", execname, probefunc] = count();
}

syscall:::return
/self->began/
{
	@time["NANOSECONDS", probefunc] = quantize(timestamp - self->began);
	self->began = 0;
}

syscall:::return
/errno/
{
	@errors["ERRORS", execname, probefunc, errno] = count();
}
