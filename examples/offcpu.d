#!/usr/bin/env -S kdtrace -s
/*
 * Time that threads spend off the CPU, by program and kernel stack.
 *
 *	offcpu.d -k KERNEL -c '$ cat /etc/motd | wc'
 */
#pragma D option quiet

sched:::off-cpu
/execname != "idle"/
{
	self->left = timestamp;
}

sched:::on-cpu
/self->left/
{
	@[execname, stack(6)] = sum(timestamp - self->left);
	self->left = 0;
}
