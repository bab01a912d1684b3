#!/usr/bin/env -S kdtrace -s
/*
 * Count how often each instruction of a function is executed; a loop stands out.
 *
 *	coverage.d -k KERNEL -c 'strlen("how long is this?")'
 */
#pragma D option quiet

kinst::strlen:
{
	@[strtoll(probename)] = count();
}

END
{
	setopt("aggsortkey");
	printa("strlen+%-4d %@d\n", @);
}
