/* The library that inlines.c loads again and again. */
struct count { volatile long in, out, sum; };

static volatile long kept;

static inline __attribute__((always_inline)) long inside(long n, struct count *count)
{
	count->in++;
	count->sum += n;
	while (n > 10) {
		kept += n;
		n /= 2;
	}
	count->out++;
	return n;
}

long through(long n, struct count *count);
long through(long n, struct count *count)
{
	return inside(n, count) + (n & 1 ? inside(n + 1, count) : 0);
}
