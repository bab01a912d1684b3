#!/usr/bin/env -S kdtrace -s
/*
 * Trace disk requests: latency, process, disk, offset and size.
 *
 *	iosnoop.d -k KERNEL -c '$ cat /etc/motd; echo x > /tmp/y; sync'
 */
#pragma D option quiet

BEGIN
{
	printf("%8s %-12s %-6s %s %10s %8s\n", "US", "COMMAND", "DISK", "D", "OFFSET", "BYTES");
}

io:::start
{
	began[arg0] = timestamp;
	who[arg0] = execname;
}

io:::done
/began[arg0]/
{
	printf("%8d %-12s %-6s %s %10d %8d\n", (timestamp - began[arg0]) / 1000, who[arg0],
	    stringof(args[1]->device_name), args[0]->bio_cmd == BIO_READ ? "R" :
	    args[0]->bio_cmd == BIO_WRITE ? "W" : "-", args[0]->bio_offset, args[0]->bio_length);
	began[arg0] = 0;
	who[arg0] = 0;
}
