#!/usr/bin/env -S kdtrace -s
/*
 * Functions of a program: number of calls, and time including callees.
 *
 *	ufunctions.d -k KERNEL -c '$ cat /etc/motd'
 */
#pragma D option quiet

pid$target:a.out::entry
{
	self->began[probefunc] = timestamp;
	@calls[probefunc] = count();
}

pid$target:a.out::return
/self->began[probefunc]/
{
	@time[probefunc] = sum(timestamp - self->began[probefunc]);
	self->began[probefunc] = 0;
}

END
{
	printf("CALLS\n");
	printa("  %-30s %@8d\n", @calls);
	printf("NANOSECONDS\n");
	printa("  %-30s %@8d\n", @time);
}
