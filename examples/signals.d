#!/usr/bin/env -S kdtrace -s
/*
 * Trace signals: sender, recipient and signal number.
 *
 *	signals.d -k KERNEL -c '$ check'
 */
#pragma D option quiet

proc:::signal-send
{
	printf("%-12s %5d -> %5d %s: signal %d\n", execname, pid, args[1]->p_pid,
	    stringof(args[1]->p_comm), args[2]);
}
