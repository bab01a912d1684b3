#!/usr/bin/env -S kdtrace -s
/*
 * Trace changes of the first argument's register inside a function, with a probe on each
 * instruction.
 *
 *	argument.d -C -k KERNEL -c 'memcmp("abcdefghijkl", "abcdefghijkm", 12)'
 */
#pragma D option quiet

#if defined(__aarch64__)
#define	FIRST	R_X0
#elif defined(__riscv)
#define	FIRST	R_A0
#else
#define	FIRST	R_RDI
#endif

uint64_t last;

kinst::memcmp:
/regs[FIRST] != last/
{
	printf("%s+%-4s %x\n", probefunc, probename, regs[FIRST]);
	last = regs[FIRST];
}
