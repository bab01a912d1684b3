#!/usr/bin/env -S kdtrace -s
/*
 * The ten most executed instructions of a program.
 *
 *	instructions.d -k KERNEL -c '$ work hash 200'
 */
#pragma D option quiet

pid$target:a.out::
/probename != "entry" && probename != "return"/
{
	@all = count();
	@[probefunc, probename] = count();
}

END
{
	trunc(@, 10);
	printa("%@d instructions\n", @all);
	printa("  %s+0x%s %@d\n", @);
}
