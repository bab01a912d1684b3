#!/usr/bin/env -S kdtrace -s
/*
 * Distribution of the time that malloc takes, in virtual nanoseconds (the clock counts instructions).
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
