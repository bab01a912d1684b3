#!/usr/bin/env -S kdtrace -s
/*
 * When a boot allocates: calls of malloc by the millisecond of virtual time.
 *
 *	timeline.d -k KERNEL --trap-path direct -c boot
 */
#pragma D option quiet

fbt::malloc:entry
{
	@["milliseconds"] = lquantize(timestamp / 1000000, 0, 1000, 50);
}
