#!/usr/bin/env -S kdtrace -s
/*
 * Memory allocations in a boot, by type of memory: number and distribution of sizes.
 *
 *	allocations.d -k KERNEL --trap-path direct -c boot
 */
#pragma D option quiet

fbt::malloc:entry
{
	this->type = args[1];
	@[stringof(this->type->ks_shortdesc)] = count();
	@dist[stringof(this->type->ks_shortdesc)] = quantize(args[0]);
}

END
{
	trunc(@dist, 3);
	printf("ALLOCATIONS\n");
	printa(@);
	printf("\nSIZES\n");
	printa(@dist);
}
