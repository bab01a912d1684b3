#!/usr/bin/env -S kdtrace -s
/*
 * The drivers that a boot asks in vain whether a device is theirs (ENXIO), and how often.
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
