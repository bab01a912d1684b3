#!/usr/bin/env -S kdtrace -s
/*
 * Trace processes as they start and end: parent, cause of the end (1: exit, 2: signal), lifetime.
 *
 *	forks.d -k KERNEL -c '$ cat /etc/motd | wc; false'
 */
#pragma D option quiet

proc:::create
{
	born[args[0]->p_pid] = timestamp;
	printf("%d %s made %d\n", pid, execname, args[0]->p_pid);
}

proc:::exit
/born[pid]/
{
	printf("%d %s ended (%d) after %d us\n", pid, execname, args[0],
	    (timestamp - born[pid]) / 1000);
	born[pid] = 0;
}
