#!/usr/bin/env -S kdtrace -s
/*
 * How long malloc takes, in virtual nanoseconds, which are instructions.
 *
 *	latency.d -k KERNEL --trap-path direct -c boot
 */
#pragma D option quiet

fbt::malloc:entry
{
	self->began = timestamp;
}

fbt::malloc:return
/self->began/
{
	@["nanoseconds in malloc"] = lquantize(timestamp - self->began, 0, 1000, 100);
	self->began = 0;
}
