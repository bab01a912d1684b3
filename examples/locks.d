#!/usr/bin/env -S kdtrace -s
/*
 * Locks that a boot does not get at once: the name of the lock, how often, and who wants it.  The
 * quick way of a mutex is inlined everywhere; these are its slow ways.  (On one processor nobody
 * else holds the lock: it is taken again by its owner, or its word changed meanwhile.)
 *
 *	locks.d -k KERNEL --trap-path direct -c boot
 */
#pragma D option quiet

fbt::__mtx_lock_sleep:entry
{
	this->mutex = (struct mtx *)(arg0 - offsetof(struct mtx, mtx_lock));
	@places[stringof(this->mutex->lock_object.lo_name), stack(1)] = count();
}

fbt::__mtx_lock_sleep:entry, fbt::_sx_xlock_hard:entry, fbt::_sx_slock_hard:entry,
fbt::__rw_wlock_hard:entry, fbt::__rw_rlock_hard:entry
{
	@ways[probefunc] = count();
}

END
{
	trunc(@places, 8);
	printf("PLACES\n");
	printa(@places);
	printf("\nSLOW WAYS\n");
	printa(@ways);
}
