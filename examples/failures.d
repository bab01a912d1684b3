#!/usr/bin/env -S kdtrace -s
/*
 * Drivers whose probe function rejects a device in a boot (ENXIO), by number of rejections.
 *
 *	failures.d -k KERNEL --trap-path direct -c boot
 */
#pragma D option quiet

fbt::*_probe:return
/(int)arg1 == ENXIO/
{
	@[probefunc] = count();
}

END
{
	trunc(@, 10);
}
