#!/usr/bin/env -S kdtrace -s
/*
 * Where every inlined copy of a function ends (kinst, listing 1 of its paper).
 *
 *	inline_returns.d -k KERNEL -c 'malloc(100, &M_TEMP, 2)'
 */
kinst::critical_enter:return
{
}
