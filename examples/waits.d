#!/usr/bin/env -S kdtrace -s
/*
 * What threads wait for (the message of their wait channel), and for how long.
 *
 *	waits.d -k KERNEL -c '$ cat /etc/motd | wc; sleep 1'
 */
#pragma D option quiet

sched:::off-cpu
/curthread->td_wmesg != NULL/
{
	self->since = timestamp;
	self->what = curthread->td_wmesg;
}

sched:::on-cpu
/self->since/
{
	@[execname, stringof(self->what)] = sum((timestamp - self->since) / 1000);
	self->since = 0;
}

END
{
	printf("%-16s %-10s %12s\n", "COMMAND", "WAIT", "MICROSECONDS");
	printa("%-16s %-10s %@12d\n", @);
}
