/*
 * Code patterns to probe: a jump table, tail calls, inline functions with several callers, one of
 * them split into two ranges, and pointers in data.  SPDX-License-Identifier: BSD-2-Clause
 */
#include "kernel.h"

static u64 balance, refused;

/* Inlined everywhere; the unlikely branch is moved out of line, so a copy has two ranges. */
static inline __attribute__((always_inline)) u64
charge(u64 amount)
{
	if (__builtin_expect(amount > 1000000, 0)) {
		refused++;
		cnputs("refused\n");
		return 0;
	}
	balance += amount;
	return amount;
}

static inline __attribute__((always_inline)) u64
mix(u64 value)
{
	value ^= value >> 29;
	value *= 0x9e3779b97f4a7c15ul;
	return value ^ value >> 32;
}

u64
account(u64 amount)
{
	return charge(amount) + mix(amount);
}

u64
refund(u64 amount)
{
	u64 sum = 0;

	for (u64 i = 0; i < 3; i++)
		sum += charge(amount + i);
	return mix(sum);
}

u64
audit(u64 amount)
{
	return mix(balance) ^ mix(refused) ^ charge(amount);
}

/* A dense switch, which is compiled to a jump table. */
u64
classify(int kind, u64 value)
{
	switch (kind) {
	case 0:
		return value + 1;
	case 1:
		return value * 3;
	case 2:
		return value ^ 0x5555;
	case 3:
		return account(value);
	case 4:
		return fibonacci((int)(value % 20));
	case 5:
		return collatz(value);
	case 6:
		return tail_even(value);
	case 7:
		return mix(value);
	default:
		return 0;
	}
}

u64
fibonacci(int n)
{
	if (n < 2)
		return (u64)n;
	return fibonacci(n - 1) + fibonacci(n - 2);
}

u64
collatz(u64 n)
{
	u64 steps = 0;

	while (n > 1) {
		n = n & 1 ? 3 * n + 1 : n / 2;
		steps++;
	}
	return steps;
}

static __attribute__((noinline)) u64
tail_odd(u64 n)
{
	return n == 0 ? 0 : mix(n) & 1 ? refund(n) : audit(n);
}

/* Ends with tail calls: jumps to other functions. */
u64
tail_even(u64 n)
{
	if (n % 2 == 0)
		return account(n);
	return tail_odd(n);
}

static const char *const names[] = {
	"increment", "triple", "flip", "account", "fibonacci", "collatz", "tail", "mix", "nothing",
};

const char *
describe(int kind)
{
	if (kind < 0 || kind >= (int)(sizeof(names) / sizeof(names[0])))
		return "unknown";
	return names[kind];
}
