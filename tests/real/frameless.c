/* by_tail() tail-calls outer(), which calls inner() without a stack frame. outer() thus has the stack
 * pointer of by_tail(), whose return is still pending. */
#include "system.h"

#define APART __attribute__((noinline))

long outer(long n);
long inner(long n);
long last(long n);
#if defined(__aarch64__)
__asm__(".type outer, @function\n.type inner, @function\n.type last, @function\n"
    "outer: mov x9, x30\n add x0, x0, #1\n bl inner\n mov x30, x9\n ret\n.size outer, . - outer\n"
    "inner: add x0, x0, #1\n b last\n.size inner, . - inner\n"
    "last: add x0, x0, #1\n ret\n.size last, . - last\n");
#elif defined(__riscv)
__asm__(".type outer, @function\n.type inner, @function\n.type last, @function\n"
    "outer: mv t1, ra\n addi a0, a0, 1\n call inner\n mv ra, t1\n ret\n.size outer, . - outer\n"
    "inner: addi a0, a0, 1\n j last\n.size inner, . - inner\n"
    "last: addi a0, a0, 1\n ret\n.size last, . - last\n");
#else
__asm__(".type outer, @function\n.type inner, @function\n.type last, @function\n"
    "outer: incq %rdi\n call inner\n ret\n.size outer, . - outer\n"
    "inner: incq %rdi\n jmp last\n.size inner, . - inner\n"
    "last: leaq 1(%rdi), %rax\n ret\n.size last, . - last\n");
#endif

static volatile long zero;

APART long by_tail(long n) { n ^= zero; return outer(n); }

APART void
loop(void)
{
	for (int i = 0; i < 100; i++)
		by_tail(9);
}

int
main(int argc, char **argv, char **environment)
{
	(void)argc, (void)argv, (void)environment;
	loop();
	return (0);
}
