#!/usr/bin/env -S kdtrace -s
/*
 * Trace all functions that one call enters and leaves.
 *
 *	flow.d -k KERNEL --trap-path direct -c 'malloc(100, &M_TEMP, 2)'
 */
#pragma D option flowindent

fbt::malloc:entry
{
	self->traced = 1;
}

fbt:::
/self->traced/
{
}

fbt::malloc:return
{
	self->traced = 0;
}
