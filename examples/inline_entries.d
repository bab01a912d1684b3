#!/usr/bin/env -S kdtrace -s
/*
 * Count executions of each inlined copy of a function at its first instruction, by the containing
 * function and the offset (listing 8 of the kinst paper).  With -d, kdtrace prints the probes that the
 * description expands to.
 *
 *	inline_entries.d -k KERNEL -c 'malloc(100, &M_TEMP, 2)'
 */
kinst::critical_enter:entry
{
	@[probefunc, probename] = count();
}
