#!/usr/bin/env -S kdtrace -s
/*
 * Time spent in system calls, by program and call: total, longest and number.
 *
 *	sysperf.d -k KERNEL -c '$ cat /etc/motd | wc; ls /bin'
 */
#pragma D option quiet

syscall:::entry
{
	self->began = timestamp;
}

syscall:::return
/self->began/
{
	@count[execname, probefunc] = count();
	@elapsed[execname, probefunc] = sum(timestamp - self->began);
	@longest[execname, probefunc] = max(timestamp - self->began);
	self->began = 0;
}

END
{
	printf("%-14s %-16s %12s %12s %8s\n", "COMMAND", "CALL", "ELAPSED ns", "LONGEST ns", "CALLS");
	printa("%-14s %-16s %@12d %@12d %@8d\n", @elapsed, @longest, @count);
}
