#!/usr/bin/env -S kdtrace -s
/*
 * Trace the functions of a program, its system calls and some kernel functions as one flow.
 *
 *	throughcalls.d -k KERNEL -c '$ cat /etc/motd'
 */
#pragma D option flowindent

pid$target:a.out::entry, pid$target:a.out::return
{
}

syscall:::entry, syscall:::return
/pid == $target && execname == "cat"/
{
}

fbt::namei:, fbt::vn_read:, fbt::vn_open_cred:
/pid == $target && execname == "cat"/
{
}
