#!/usr/bin/env -S kdtrace -s
/*
 * Programs as they begin: the process, its parent, its arguments.
 *
 *	execsnoop.d -k KERNEL -c '$ cat /etc/motd | wc'
 */
#pragma D option quiet

proc:::exec-success
{
	printf("%6d %6d %s\n", pid, ppid, curpsinfo->pr_psargs);
}
