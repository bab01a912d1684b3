#!/usr/bin/env -S kdtrace -s
/*
 * Trace the ends of all inlined copies of a function (listing 1 of the kinst paper).
 *
 *	inline_returns.d -k KERNEL -c 'malloc(100, &M_TEMP, 2)'
 */
kinst::critical_enter:return
{
}
