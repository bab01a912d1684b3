#!/usr/bin/env -S kdtrace -s
/*
 * Count the state changes of TCP connections.
 *
 *	tcpstates.d -k KERNEL -c '$ check sockets'
 */
#pragma D option quiet

tcp:::state-change
{
	this->from = tcp_state_string[args[5]->tcps_state];
	this->to = tcp_state_string[args[3]->tcps_state];
	@[this->from, this->to] = count();
}

END
{
	printa("%-24s -> %-24s %@d\n", @);
}
