#!/usr/bin/env -S kdtrace -s
/*
 * The five most frequent call stacks of zone allocations in a boot.
 *
 *	callers.d -k KERNEL --trap-path direct -c boot
 */
#pragma D option quiet

fbt::uma_zalloc_arg:entry
{
	@[stack(5)] = count();
}

END
{
	trunc(@, 5);
}
