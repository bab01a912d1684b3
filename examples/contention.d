#!/usr/bin/env -S kdtrace -s
/*
 * Lock contention: how long each lock is waited for, and the longest waits by stack.
 * The kernel measures waits for lockstat's probes only while they are enabled there, so this script
 * traces the functions that take a lock which is not free.
 *
 *	contention.d -k KERNEL --trap-path direct -c boot
 */
#pragma D option quiet

fbt::__mtx_lock_sleep:entry
{
	self->lock = &((struct mtx *)(arg0 - offsetof(struct mtx, mtx_lock)))->lock_object;
	self->began = timestamp;
}

fbt::_sx_xlock_hard:entry, fbt::_sx_slock_hard:entry
{
	self->lock = &((struct sx *)arg0)->lock_object;
	self->began = timestamp;
}

fbt::__mtx_lock_sleep:return, fbt::_sx_xlock_hard:return, fbt::_sx_slock_hard:return
/self->began/
{
	@count[probefunc, stringof(self->lock->lo_name)] = count();
	@time[probefunc, stringof(self->lock->lo_name)] = sum(timestamp - self->began);
	@longest[stringof(self->lock->lo_name), stack(3)] = max(timestamp - self->began);
	self->began = 0;
}

END
{
	printf("%-20s %-24s %8s %12s\n", "FUNCTION", "LOCK", "COUNT", "NANOSECONDS");
	printa("%-20s %-24s %@8d %@12d\n", @count, @time);
	trunc(@longest, 3);
	printa(@longest);
}
