#!/usr/bin/env -S kdtrace -s
/*
 * Distribution of the time that runnable threads wait for the CPU, by program.
 *
 *	runqlat.d -k KERNEL -c '$ cat /etc/motd | wc; ls /bin'
 */
#pragma D option quiet

sched:::enqueue
{
	since[arg0] = timestamp;
}

sched:::on-cpu
/since[(uint64_t)curthread]/
{
	@wait[execname] = quantize(timestamp - since[(uint64_t)curthread]);
	since[(uint64_t)curthread] = 0;
}

END
{
	printa("\n%s: nanoseconds until it ran\n%@d", @wait);
}
