/* Two processes that repeatedly tail-call spin(), which does not use the stack. On several CPUs, at
 * least one process is in spin() at any time. */
#define ROUNDS 50000
#define APART __attribute__((noinline))

static volatile long zero;
long spin(long n);
#if defined(__x86_64__)
__asm__(".type spin, @function\nspin: movq %rdi, %rax\n1: decq %rdi\njnz 1b\nret\n.size spin, . - spin\n");
#elif defined(__aarch64__)
__asm__(".type spin, @function\nspin: mov x1, x0\n1: subs x1, x1, #1\nb.ne 1b\nret\n.size spin, . - spin\n");
#else
__asm__(".type spin, @function\nspin: mv a1, a0\n1: addi a1, a1, -1\nbnez a1, 1b\nret\n.size spin, . - spin\n");
#endif

APART long by_tail(long n) { n ^= zero; return spin(n); }

APART void
loop(void)
{
	for (int i = 0; i < ROUNDS; i++) {
		by_tail(9);
		by_tail(5);
	}
}

int
main(void)
{
	int status, child = fork();

	loop();
	if (child == 0)
		exit(0);
	waitpid(child, &status, 0);
	return (0);
}
