/*
 * Workloads for timing: "work calls N" makes system calls, and "work faults N" touches new pages.
 * "work loop N" (many branches) and "work hash N" (few branches) stay in user mode.  "work room N"
 * makes system calls after it has mapped stack pages, so that a tool can replace a call.
 */
#include "system.h"

enum { PAGE = 4096, AT_ONCE = 4096 }; /* AT_ONCE: maximum number of pages mapped at a time */

static void
call(unsigned long count)
{
	while (count-- > 0)
		CALL0(SYS_getppid);
}

__attribute__((noinline)) static void
use_stack(void)
{
	char room[3 * PAGE];

	for (int i = 0; i < 3; i++)
		room[i * PAGE] = 1;
	__asm__ volatile("" : : "r"(room) : "memory");
}

static int
touch(unsigned long count)
{
	while (count > 0) {
		unsigned long pages = count < AT_ONCE ? count : AT_ONCE;
		char *at = (char *)CALL(SYS_mmap, 0, pages * PAGE, PROT_READ | PROT_WRITE,
		    MAP_ANON | MAP_PRIVATE, -1, 0);

		if ((long)at < 0)
			return (1);
		for (unsigned long i = 0; i < pages; i++)
			at[i * PAGE] = 1;
		CALL2(SYS_munmap, at, pages * PAGE);
		count -= pages;
	}
	return (0);
}

/* Compute random numbers and use them as table indices: arithmetic, loads, branches. */
static unsigned long
loop(unsigned long count)
{
	static unsigned table[1024];
	unsigned long state = 1;

	for (; count > 0; count--) {
		state = state * 6364136223846793005ul + 1442695040888963407ul;
		if ((table[state >> 54] += (unsigned)(state >> 32)) & 1)
			state ^= table[state >> 44 & 1023];
	}
	return (state);
}

#define MIX(a, b, c, d) do { \
	a += b; d = (d ^ a) << 16 | (d ^ a) >> 16; c += d; b = (b ^ c) << 12 | (b ^ c) >> 20; \
	a += b; d = (d ^ a) << 8 | (d ^ a) >> 24; c += d; b = (b ^ c) << 7 | (b ^ c) >> 25; \
} while (0)

/* Compute rounds of ChaCha (RFC 8439, 2.1): few branches. */
static unsigned long
hash(unsigned long count)
{
	unsigned x[16];

	for (unsigned i = 0; i < 16; i++)
		x[i] = i;
	for (; count > 0; count--) {
		MIX(x[0], x[4], x[8], x[12]);
		MIX(x[1], x[5], x[9], x[13]);
		MIX(x[2], x[6], x[10], x[14]);
		MIX(x[3], x[7], x[11], x[15]);
		MIX(x[0], x[5], x[10], x[15]);
		MIX(x[1], x[6], x[11], x[12]);
		MIX(x[2], x[7], x[8], x[13]);
		MIX(x[3], x[4], x[9], x[14]);
	}
	return ((unsigned long)x[0] << 32 | x[15]);
}

int
main(int argc, char **argv, char **environment)
{
	unsigned long count = 0;

	(void)environment;
	if (argc != 3) {
		print(2, "usage: work calls|faults|loop|hash|room N\n");
		return (2);
	}
	for (const char *digit = argv[2]; *digit >= '0' && *digit <= '9'; digit++)
		count = 10 * count + (unsigned long)(*digit - '0');
	if (strcmp(argv[1], "room") == 0)
		use_stack();
	if (strcmp(argv[1], "calls") == 0 || strcmp(argv[1], "room") == 0)
		call(count);
	else if (strcmp(argv[1], "faults") == 0)
		return (touch(count));
	else
		print(1, "%lx\n", strcmp(argv[1], "hash") == 0 ? hash(count) : loop(count));
	return (0);
}
