/* A system call on amd64: rax has the number, and the carry flag signals an error. */
static inline long
system_call(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;

	__asm__ volatile("syscall\n\tjnc 1f\n\tnegq %0\n1:"
	    : "+a"(number), "+d"(c), "+r"(r10), "+r"(r8), "+r"(r9)
	    : "D"(a), "S"(b) : "rcx", "r11", "cc", "memory");
	return (number);
}

/* Instructions that cause SIGTRAP and SIGILL */
#define BREAKPOINT() __asm__ volatile("int3")
#define UNDEFINED() __asm__ volatile("ud2")
