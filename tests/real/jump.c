/* by_tail() tail-calls target(), which jumps back to loop(), the caller of by_tail(), as longjmp()
 * would. */
#include "system.h"

#define ROUNDS 9
#define APART __attribute__((noinline))

/* keep() and back_to() save and restore the callee-saved registers, like setjmp() and longjmp(). */
long keep(long *place);
void back_to(long *place, long value) __attribute__((noreturn));

#if defined(__x86_64__)
__asm__(
    "keep: movq (%rsp), %rax; movq %rax, (%rdi); leaq 8(%rsp), %rax; movq %rax, 8(%rdi)\n"
    "movq %rbx, 16(%rdi); movq %rbp, 24(%rdi); movq %r12, 32(%rdi); movq %r13, 40(%rdi)\n"
    "movq %r14, 48(%rdi); movq %r15, 56(%rdi); xorl %eax, %eax; ret\n"
    "back_to: movq %rsi, %rax; movq 8(%rdi), %rsp; movq 16(%rdi), %rbx; movq 24(%rdi), %rbp\n"
    "movq 32(%rdi), %r12; movq 40(%rdi), %r13; movq 48(%rdi), %r14; movq 56(%rdi), %r15\n"
    "jmp *(%rdi)\n");
#elif defined(__aarch64__)
__asm__(
    "keep: mov x9, sp\n stp x30, x9, [x0]\n stp x19, x20, [x0, #16]\n stp x21, x22, [x0, #32]\n"
    "stp x23, x24, [x0, #48]\n stp x25, x26, [x0, #64]\n stp x27, x28, [x0, #80]\n"
    "str x29, [x0, #96]\n mov x0, #0\n ret\n"
    "back_to: mov x10, x0\n mov x0, x1\n ldp x30, x9, [x10]\n mov sp, x9\n"
    "ldp x19, x20, [x10, #16]\n ldp x21, x22, [x10, #32]\n ldp x23, x24, [x10, #48]\n"
    "ldp x25, x26, [x10, #64]\n ldp x27, x28, [x10, #80]\n ldr x29, [x10, #96]\n ret\n");
#else
__asm__(
    "keep: sd ra, 0(a0)\n sd sp, 8(a0)\n sd s0, 16(a0)\n sd s1, 24(a0)\n sd s2, 32(a0)\n"
    "sd s3, 40(a0)\n sd s4, 48(a0)\n sd s5, 56(a0)\n sd s6, 64(a0)\n sd s7, 72(a0)\n"
    "sd s8, 80(a0)\n sd s9, 88(a0)\n sd s10, 96(a0)\n sd s11, 104(a0)\n li a0, 0\n ret\n"
    "back_to: mv t0, a0\n mv a0, a1\n ld ra, 0(t0)\n ld sp, 8(t0)\n ld s0, 16(t0)\n"
    "ld s1, 24(t0)\n ld s2, 32(t0)\n ld s3, 40(t0)\n ld s4, 48(t0)\n ld s5, 56(t0)\n"
    "ld s6, 64(t0)\n ld s7, 72(t0)\n ld s8, 80(t0)\n ld s9, 88(t0)\n ld s10, 96(t0)\n"
    "ld s11, 104(t0)\n ret\n");
#endif

static long place[16];
static volatile long left = ROUNDS;

APART long target(long a)
{
	left--;
	if (left > 0)
		back_to(place, 1);
	__asm__ volatile("" ::: "memory");
	return a + 7;
}

APART long by_tail(long a)
{
	__asm__ volatile("" :: "r"(a));
	return target(a + 1);
}

APART long loop(void)
{
	keep(place);
	return by_tail(left) + 1;
}

int main(int argc, char **argv, char **env)
{
	(void)argc;
	(void)argv;
	(void)env;
	print(1, "%ld\n", loop());
	return 0;
}
