#!/usr/bin/env -S kdtrace -s
/*
 * The functions that a boot enters most often, of all that there are.
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
