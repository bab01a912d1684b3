/* A system call on riscv64: t0 has the number, and is nonzero afterwards if there was an error. */
static inline long
system_call(long number, long a, long b, long c, long d, long e, long f)
{
	register long t0 __asm__("t0") = number;
	register long a0 __asm__("a0") = a;
	register long a1 __asm__("a1") = b;
	register long a2 __asm__("a2") = c;
	register long a3 __asm__("a3") = d;
	register long a4 __asm__("a4") = e;
	register long a5 __asm__("a5") = f;

	__asm__ volatile("ecall\n\tbeqz t0, 1f\n\tneg a0, a0\n1:"
	    : "+r"(t0), "+r"(a0), "+r"(a1)
	    : "r"(a2), "r"(a3), "r"(a4), "r"(a5) : "memory");
	return (a0);
}

/* Instructions that cause SIGTRAP and SIGILL */
#define BREAKPOINT() __asm__ volatile("ebreak")
#define UNDEFINED() __asm__ volatile("unimp")
