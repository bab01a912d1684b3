#!/usr/bin/env -S kdtrace -s
/*
 * Where the instructions of one system call are executed: the most frequent inlined functions and
 * source lines.
 *
 *	onecall.d -k KERNEL -c '$ cat /etc/motd'
 */
#pragma D option quiet

#pragma D option stackline

syscall::open:entry
/execname == "cat"/
{
	self->in = 1;
}

kinst::sys_open:, kinst::kern_openat:, kinst::openatfp:, kinst::vn_open_cred:
/self->in/
{
	@lines[stack(1)] = count();
	@functions[probefunc] = count();
}

syscall::open:return
/self->in/
{
	self->in = 0;
}

END
{
	trunc(@lines, 12);
	printa("%-20s %@8d instructions\n", @functions);
	printa(@lines);
}
