#!/usr/bin/env -S kdtrace -s
/*
 * Who allocates from zones most often in a boot, by stack.
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
