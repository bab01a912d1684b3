#!/usr/bin/env -S kdtrace -s
/*
 * Trace programs as they start: process, parent process and arguments.
 *
 *	execsnoop.d -k KERNEL -c '$ cat /etc/motd | wc'
 */
#pragma D option quiet

proc:::exec-success
{
	printf("%6d %6d %s\n", pid, ppid, curpsinfo->pr_psargs);
}
