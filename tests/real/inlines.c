/* A program that counts how often its inline functions are entered and left, however that happens:
 * in loops, nested, recursively, in a signal handler, in threads that end inside one, by longjmp(),
 * in coroutines, by jumps whose targets are not in memory yet, in children, and in a library that is
 * loaded again and again. */
#include <sys/wait.h>
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>

#define ALWAYS static inline __attribute__((always_inline))
#define APART __attribute__((noinline))
/* An unrolled loop has one copy of its body in the debug data. */
#define ROLLED _Pragma("clang loop unroll(disable)")

struct count { volatile long in, out, sum; };
static struct count loops, nests, partly, ends, jumps, handles, loaded, whole, shares, faults;
static volatile long sink;
static jmp_buf place;

static APART long other(long x) { sink += x; return sink & 0xffff; }

/* Several ways out, a loop, and calls. */
ALWAYS long looping(long a, long b)
{
	loops.in++;
	loops.sum += a;
	for (long i = 0; i < (a & 3); i++)
		b += other(i);
	if (b & 1) {
		loops.out++;
		return b * 3;
	}
	b ^= other(a);
	loops.out++;
	return b;
}

ALWAYS long nested(long a)
{
	nests.in++;
	nests.sum += a;
	long sum = looping(a, 5) + looping(a + 1, 6);
	nests.out++;
	return sum;
}

/* Inline in main(), and a function of its own. */
long partial(long n);
long partial(long n)
{
	partly.in++;
	partly.sum += n;
	partly.out++;
	return n * 7 + other(n);
}

static APART long deep(long n)
{
	long sum = looping(n, n);
	return n > 0 ? sum + deep(n - 1) : sum;
}

ALWAYS void ending(long n)
{
	ends.in++;
	ends.sum += n;
	if (n & 1)
		pthread_exit(NULL);
	other(n);
	ends.out++;
}

static void *thread(void *n)
{
	ending((long)n);
	return NULL;
}

ALWAYS void jumping(long n)
{
	jumps.in++;
	jumps.sum += n;
	other(n);
	if (n % 3)
		longjmp(place, 1);
	other(n);
	jumps.out++;
}

static APART void try(long n)
{
	if (setjmp(place) == 0)
		jumping(n);
}

ALWAYS void handling(long n)
{
	handles.in++;
	handles.sum += n;
	if (n > 0)
		raise(SIGUSR1);
	other(n);
	handles.out++;
}

static void handler(int number) { handling(number - SIGUSR1); }

/* The whole body of a loop. */
ALWAYS void filling(long n)
{
	whole.in++;
	whole.sum += n;
	whole.out++;
	other(n);
}

static APART void fill(long n)
{
	ROLLED for (long i = 0; i < n; i++)
		filling(i);
}

/* Two stacks take turns inside the function, but not on riscv64, where swapcontext() panics some
 * kernels (docs/reproducers.md). */
static ucontext_t back, routines[2];
static char stacks[2][1 << 16];
static int turn;

static APART void give_way(void)
{
	int mine = turn;
	turn = !mine;
#ifndef __riscv
	swapcontext(&routines[mine], &routines[!mine]);
#endif
}

ALWAYS void sharing(long n)
{
	shares.in++;
	shares.sum += n;
	give_way();
	shares.out++;
	other(n);
}

static APART void share(long n) { sharing(n); other(1); }

static void routine(void)
{
	ROLLED for (long i = 0; i < 5; i++)
		share(i);
	give_way();
}

/* The function ends with a jump to a function of the table, whose pages are used for the first
 * time. */
#define APART_PAGES 40
static long (*const table[APART_PAGES][512])(long) = {
	[0 ... APART_PAGES - 1] = { [0 ... 511] = other }
};

ALWAYS long faulting(long n)
{
	faults.in++;
	faults.sum += n;
	faults.out++;
	return table[n][n](n);
}

static APART long fault(long n) { return faulting(n); }

static void said(const char *name, const struct count *one)
{
	printf("%s %ld %ld %ld\n", name, one->in, one->out, one->sum);
}

int main(int argc, char **argv)
{
	long (*volatile of_its_own)(long) = partial;
	long sum = 0;

	ROLLED for (long i = 0; i < 20; i++)
		sum += nested(i) + partial(i);
	sum += of_its_own(3) + deep(10);
	ROLLED for (long i = 0; i < 12; i++) {
		pthread_t one;
		if (pthread_create(&one, NULL, thread, (void *)i) == 0)
			pthread_join(one, NULL);
	}
	ROLLED for (long i = 0; i < 9; i++)
		try(i);
	signal(SIGUSR1, handler);
	ROLLED for (long i = 0; i < 5; i++)
		handling(i);
	fill(argc + 30);
	ROLLED for (int i = 0; i < 2; i++) {
		getcontext(&routines[i]);
		routines[i].uc_stack.ss_sp = stacks[i];
		routines[i].uc_stack.ss_size = sizeof(stacks[i]);
		routines[i].uc_link = &back;
		makecontext(&routines[i], routine, 0);
	}
#ifdef __riscv
	routine();
#else
	swapcontext(&back, &routines[0]);
#endif
	ROLLED for (long i = 0; i < APART_PAGES; i++)
		sum += fault(i);
	ROLLED for (int i = 0; i < 2; i++) {
		pid_t child = i ? vfork() : fork();
		if (child == 0) {
			if (!i)
				nested(100); /* not in this process */
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
	ROLLED for (long i = 0; argc > 1 && i < 100; i++) {
		void *library = dlopen(argv[1], RTLD_NOW);
		long (*through)(long, struct count *) = library == NULL ? NULL :
		    (long (*)(long, struct count *))dlsym(library, "through");
		if (through == NULL)
			return 1;
		sum += through(i, &loaded);
		dlclose(library);
	}
	said("looping", &loops);
	said("nested", &nests);
	said("partial", &partly);
	said("ending", &ends);
	said("jumping", &jumps);
	said("handling", &handles);
	said("filling", &whole);
	said("sharing", &shares);
	said("faulting", &faults);
	said("inside", &loaded);
	return sink == 0;
}
