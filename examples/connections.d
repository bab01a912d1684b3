#!/usr/bin/env -S kdtrace -s
/*
 * State changes of TCP connections, and the number of bytes sent on each connection.
 *
 *	connections.d -k KERNEL -c '$ check'
 */
#pragma D option quiet

tcp:::state-change
{
	printf("%-12s %d-%d %s -> %s\n", execname, args[3]->tcps_lport, args[3]->tcps_rport,
	    tcp_state_string[args[5]->tcps_state], tcp_state_string[args[3]->tcps_state]);
}

tcp:::send
{
	@["BYTES", args[2]->ip_saddr, args[4]->tcp_sport, args[4]->tcp_dport] =
	    sum(args[2]->ip_plength - args[4]->tcp_offset);
}
