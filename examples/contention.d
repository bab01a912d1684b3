#!/usr/bin/env -S kdtrace -s
/*
 * Locks that are not had at once: how long it takes until they are, by the lock's name, and who waits
 * the longest.  lockstat's probes stand behind a switch that the kernel leaves off; these are the
 * functions that it goes to when the quick way fails.
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
	printf("%-20s %-24s %8s %12s\n", "WAY", "LOCK", "TIMES", "NANOSECONDS");
	printa("%-20s %-24s %@8d %@12d\n", @count, @time);
	trunc(@longest, 3);
	printa(@longest);
}
