/* A system call on arm64: x8 has the number, and the carry flag signals an error. */
static inline long
system_call(long number, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0\n\tb.cc 1f\n\tneg x0, x0\n1:"
	    : "+r"(x0), "+r"(x1)
	    : "r"(x8), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "cc", "memory");
	return (x0);
}

/* Instructions that cause SIGTRAP and SIGILL */
#define BREAKPOINT() __asm__ volatile("brk 1")
#define UNDEFINED() __asm__ volatile("udf 0")
