#!/usr/bin/env -S kdtrace -s
/*
 * Calls of malloc over a boot, in intervals of 50 milliseconds of virtual time.
 *
 *	timeline.d -k KERNEL --trap-path direct -c boot
 */
#pragma D option quiet

fbt::malloc:entry
{
	@["milliseconds"] = lquantize(timestamp / 1000000, 0, 1000, 50);
}
