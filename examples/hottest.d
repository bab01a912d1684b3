#!/usr/bin/env -S kdtrace -s
/*
 * The ten kernel functions that a boot calls most often.
 *
 *	hottest.d -k KERNEL --trap-path direct -c boot
 */
#pragma D option quiet

fbt:::entry
{
	@[probefunc] = count();
}

END
{
	trunc(@, 10);
}
