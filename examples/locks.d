#!/usr/bin/env -S kdtrace -s
/*
 * Locks that are not acquired on the fast path in a boot: name, number and caller.  The fast path of a
 * mutex is inlined everywhere, so this script traces the slow paths.  (On one CPU no other thread holds
 * the lock: its owner acquires it again, or the lock word has changed in the meantime.)
 *
 *	locks.d -k KERNEL --trap-path direct -c boot
 */
#pragma D option quiet

fbt::__mtx_lock_sleep:entry
{
	this->mutex = (struct mtx *)(arg0 - offsetof(struct mtx, mtx_lock));
	@callers[stringof(this->mutex->lock_object.lo_name), stack(1)] = count();
}

fbt::__mtx_lock_sleep:entry, fbt::_sx_xlock_hard:entry, fbt::_sx_slock_hard:entry,
fbt::__rw_wlock_hard:entry, fbt::__rw_rlock_hard:entry
{
	@slow[probefunc] = count();
}

END
{
	trunc(@callers, 8);
	printf("CALLERS\n");
	printa(@callers);
	printf("\nSLOW PATHS\n");
	printa(@slow);
}
