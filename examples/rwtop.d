#!/usr/bin/env -S kdtrace -s
/*
 * Bytes read and written by each process, in files and everything else, and the number of calls.
 *
 *	rwtop.d -k KERNEL -c '$ cat /etc/motd | wc; ls /bin'
 */
#pragma D option quiet

syscall::read:return, syscall::write:return, syscall::readv:return, syscall::writev:return,
syscall::pread:return, syscall::pwrite:return
/errno == 0/
{
	@bytes[execname, pid, probefunc] = sum(arg1);
	@calls[execname, pid, probefunc] = count();
}

END
{
	printf("%-16s %6s %-8s %8s %8s\n", "COMMAND", "PID", "CALL", "BYTES", "CALLS");
	printa("%-16s %6d %-8s %@8d %@8d\n", @bytes, @calls);
}
