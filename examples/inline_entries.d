#!/usr/bin/env -S kdtrace -s
/*
 * Where every inlined copy of a function begins: the function that it lies in, and the offset
 * (kinst, listing 8 of its paper; with -d kdtrace prints just what the description becomes).
 *
 *	inline_entries.d -k KERNEL -c 'malloc(100, &M_TEMP, 2)'
 */
kinst::critical_enter:entry
{
	@[probefunc, probename] = count();
}
