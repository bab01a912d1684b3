/*
 * Checks of kernel facilities from inside a program.  Each check runs in a separate process; "check
 * NAME" runs only one check.  The exit status is the number of checks that failed.
 */
#include "system.h"

enum { PAGE = 4096, READABLE = PROT_READ | PROT_WRITE };

static char **variables;

/* -- helpers ----------------------------------------------------------------------------------- */

static void
leave(int status)
{
	CALL1(SYS_exit, status);
	__builtin_unreachable();
}

#define WANTED(what) do { \
	if (!(what)) { \
		print(1, "  line %d: not %s\n", __LINE__, #what); \
		leave(1); \
	} \
} while (0)

static long
child(void)
{
	long pid = CALL0(SYS_fork);

	WANTED(pid >= 0);
	return (pid);
}

/* Return the wait status of a child: its exit status << 8, or the signal. */
static int
ended(long pid)
{
	int state = -1;

	WANTED(CALL4(SYS_wait4, pid, &state, 0, NULL) == pid);
	return (state);
}

static int
ended_with(long pid, int status)
{
	return (ended(pid) == status << 8);
}

static void
handle(int number, void (*handler)(int, struct siginfo *, void *))
{
	struct sigaction action = { handler, SA_SIGINFO, { { 0 } } };

	WANTED(CALL3(SYS_sigaction, number, &action, NULL) == 0);
}

static unsigned char *
memory(size_t size)
{
	long at = CALL(SYS_mmap, 0, size, READABLE, MAP_ANON | MAP_PRIVATE, -1, 0);

	WANTED(at > 0);
	return ((unsigned char *)at);
}

static long long
now(void)
{
	struct timespec time;

	WANTED(CALL2(SYS_clock_gettime, 4, &time) == 0); /* CLOCK_MONOTONIC */
	return (time.tv_sec * 1000000000LL + time.tv_nsec);
}

static void
send(int file, const void *data, long size)
{
	for (long at = 0, n; at < size; at += n)
		WANTED((n = CALL3(SYS_write, file, (const char *)data + at, size - at)) > 0);
}

static void
receive(int file, void *data, long size)
{
	for (long at = 0, n; at < size; at += n)
		WANTED((n = CALL3(SYS_read, file, (char *)data + at, size - at)) > 0);
}

static void
fill(unsigned char *data, long size, unsigned seed)
{
	for (long i = 0; i < size; i++)
		data[i] = (unsigned char)((seed = seed * 1103515245u + 12345u) >> 16);
}

static int
is_filled(const unsigned char *data, long size, unsigned seed)
{
	for (long i = 0; i < size; i++)
		if (data[i] != (unsigned char)((seed = seed * 1103515245u + 12345u) >> 16))
			return (0);
	return (1);
}

/* -- the checks -------------------------------------------------------------------------------- */

static void
check_processes(void)
{
	long pid = child();

	if (pid == 0)
		leave(7);
	WANTED(ended_with(pid, 7));
	if ((pid = child()) == 0)
		for (;;)
			CALL0(SYS_sched_yield);
	WANTED(CALL2(SYS_kill, pid, SIGKILL) == 0);
	WANTED(ended(pid) == SIGKILL);
	WANTED(CALL4(SYS_wait4, -1, NULL, 0, NULL) == -10); /* ECHILD */
	if ((pid = child()) == 0)
		leave(CALL0(SYS_getppid) == 1 ? 1 : (int)(CALL0(SYS_getpid) != 0));
	WANTED(ended_with(pid, 1));
}

static void
check_programs(void)
{
	static char *words[] = { "check", "-child", "with spaces", NULL };
	static char *names[] = { "ONE=1", "TWO=two", NULL };
	long pid = child();

	if (pid == 0) {
		CALL3(SYS_execve, "/bin/check", words, names);
		leave(1);
	}
	WANTED(ended_with(pid, 42));
	if ((pid = child()) == 0)
		leave(CALL3(SYS_execve, "/nothing", words, names) == -ENOENT ? 3 : 1);
	WANTED(ended_with(pid, 3));
}

static int
started(int argc, char **argv)
{
	return (argc == 3 && strcmp(argv[2], "with spaces") == 0 && variables[0] != NULL &&
	    strcmp(variables[0], "ONE=1") == 0 && variables[1] != NULL &&
	    strcmp(variables[1], "TWO=two") == 0 && variables[2] == NULL ? 42 : 1);
}

static void
check_pipes(void)
{
	static unsigned char data[100000];
	int ends[2];
	long pid;
	char byte;

	WANTED(CALL2(SYS_pipe2, ends, 0) == 0);
	if ((pid = child()) == 0) {
		fill(data, sizeof(data), 1);
		send(ends[1], data, sizeof(data));
		leave(0);
	}
	CALL1(SYS_close, ends[1]);
	receive(ends[0], data, sizeof(data));
	WANTED(is_filled(data, sizeof(data), 1));
	WANTED(CALL3(SYS_read, ends[0], &byte, 1) == 0);
	WANTED(ended_with(pid, 0));
}

static void
check_files(void)
{
	static unsigned char data[200000];
	static struct stat about;
	long file;

	WANTED(CALL2(SYS_mkdir, "/tmp/check", 0755) == 0);
	WANTED((file = CALL3(SYS_open, "/tmp/check/a", O_RDWR | O_CREAT | O_TRUNC, 0644)) >= 0);
	fill(data, sizeof(data), 2);
	send((int)file, data, sizeof(data));
	WANTED(CALL2(SYS_fstat, file, &about) == 0 && about.size == sizeof(data));
	memset(data, 0, sizeof(data));
	WANTED(CALL3(SYS_lseek, file, 0, 0) == 0);
	receive((int)file, data, sizeof(data));
	WANTED(is_filled(data, sizeof(data), 2));
	WANTED(CALL2(SYS_ftruncate, file, 5) == 0);
	WANTED(CALL2(SYS_fstat, file, &about) == 0 && about.size == 5);
	WANTED(CALL2(SYS_rename, "/tmp/check/a", "/tmp/check/b") == 0);
	WANTED(CALL2(SYS_open, "/tmp/check/a", O_RDONLY) == -ENOENT);
	WANTED(CALL2(SYS_open, "/etc/motd/x", O_RDONLY) == -ENOTDIR);
	WANTED(CALL1(SYS_unlink, "/tmp/check/b") == 0);
	WANTED(CALL1(SYS_rmdir, "/tmp/check") == 0);
	CALL1(SYS_close, file);
}

static void
check_redirection(void)
{
	static char *words[] = { "echo", "hello", NULL };
	char text[8];
	long file = CALL3(SYS_open, "/tmp/output", O_RDWR | O_CREAT | O_TRUNC, 0644), pid;

	WANTED(file >= 0);
	if ((pid = child()) == 0) {
		CALL2(SYS_dup2, file, 1);
		CALL3(SYS_execve, "/bin/echo", words, variables);
		leave(1);
	}
	WANTED(ended_with(pid, 0));
	WANTED(CALL3(SYS_lseek, file, 0, 0) == 0);
	WANTED(CALL3(SYS_read, file, text, sizeof(text)) == 6 && memcmp(text, "hello\n", 6) == 0);
	WANTED(CALL1(SYS_unlink, "/tmp/output") == 0);
}

static volatile int faults;
static unsigned char *volatile fault_address;
static volatile int fault_makes;

static void
make_it_there(int number, struct siginfo *info, void *context)
{
	unsigned char *page = (unsigned char *)((unsigned long)info->address & -(unsigned long)PAGE);

	(void)context;
	faults++;
	fault_address = info->address;
	if (number != SIGSEGV || faults > 10)
		leave(9);
	if (fault_makes)
		CALL(SYS_mmap, page, PAGE, READABLE, MAP_ANON | MAP_PRIVATE | MAP_FIXED, -1, 0);
	else
		CALL3(SYS_mprotect, page, PAGE, READABLE);
}

static void
check_memory(void)
{
	enum { PAGES = 256 };
	unsigned char *at = memory(PAGES * PAGE), *shared, byte;
	long pid, file;

	for (long i = 0; i < PAGES; i++) {
		WANTED(at[i * PAGE] == 0 && at[i * PAGE + PAGE - 1] == 0);
		at[i * PAGE + i] = (unsigned char)i;
	}
	if ((pid = child()) == 0) { /* the parent does not see the child's writes */
		for (long i = 0; i < PAGES; i++) {
			WANTED(at[i * PAGE + i] == (unsigned char)i);
			at[i * PAGE + i] = 99;
		}
		leave(0);
	}
	WANTED(ended_with(pid, 0));
	for (long i = 0; i < PAGES; i++)
		WANTED(at[i * PAGE + i] == (unsigned char)i);
	handle(SIGSEGV, make_it_there);
	WANTED(CALL3(SYS_mprotect, at + PAGE, PAGE, PROT_READ) == 0);
	at[PAGE + 77] = 5;
	WANTED(faults == 1 && fault_address == at + PAGE + 77 && at[PAGE + 77] == 5);
	WANTED(CALL2(SYS_munmap, at + 2 * PAGE, PAGE) == 0);
	fault_makes = 1;
	WANTED(*(volatile unsigned char *)(at + 2 * PAGE + 5) == 0);
	WANTED(faults == 2 && fault_address == at + 2 * PAGE + 5);
	WANTED(CALL3(SYS_read, 0, (void *)PAGE, 0) == 0);
	WANTED((file = CALL3(SYS_open, "/tmp/mapped", O_RDWR | O_CREAT | O_TRUNC, 0644)) >= 0);
	WANTED(CALL3(SYS_write, file, (void *)PAGE, 1) == -EFAULT && faults == 2);
	WANTED(CALL2(SYS_ftruncate, file, 2 * PAGE) == 0);
	shared = (unsigned char *)CALL(SYS_mmap, 0, 2 * PAGE, READABLE, MAP_SHARED, file, 0);
	if ((pid = child()) == 0) {
		shared[PAGE + 3] = 'x';
		leave(0);
	}
	WANTED(ended_with(pid, 0) && shared[PAGE + 3] == 'x');
	WANTED(CALL3(SYS_lseek, file, PAGE + 3, 0) == PAGE + 3);
	WANTED(CALL3(SYS_read, file, &byte, 1) == 1 && byte == 'x');
	WANTED(CALL1(SYS_unlink, "/tmp/mapped") == 0);
}

static volatile int heard, order, was_inside;

static void
hear(int number, struct siginfo *info, void *context)
{
	(void)context;
	heard += number == SIGUSR1;
	was_inside = info->pid == (int)CALL0(SYS_getpid);
	order = 10 * order + 1;
}

static void
trap(void)
{
	BREAKPOINT();
}

static void
do_undefined(void)
{
	UNDEFINED();
}

static void
touch_nothing(void)
{
	*(volatile int *)8 = 1;
}

static void
check_signals(void)
{
	static void (*const ways[])(void) = { trap, do_undefined, touch_nothing };
	static const int signals[] = { SIGTRAP, SIGILL, SIGSEGV };
	struct signals one = { { 1u << (SIGUSR1 - 1), 0, 0, 0 } };
	long self = CALL0(SYS_getpid), pid;

	handle(SIGUSR1, hear);
	WANTED(CALL2(SYS_kill, self, SIGUSR1) == 0);
	WANTED(heard == 1 && was_inside && order == 1);
	WANTED(CALL3(SYS_sigprocmask, SIG_BLOCK, &one, NULL) == 0);
	CALL2(SYS_kill, self, SIGUSR1);
	order = 10 * order + 2;
	WANTED(heard == 1);
	WANTED(CALL3(SYS_sigprocmask, SIG_UNBLOCK, &one, NULL) == 0);
	WANTED(heard == 2 && order == 121);
	for (unsigned i = 0; i < 3; i++) {
		if ((pid = child()) == 0) {
			ways[i]();
			leave(0);
		}
		WANTED((ended(pid) & 127) == signals[i]); /* ignore the core dump flag */
	}
}

enum { ROUNDS = 1000 };
static volatile unsigned turn, total;
static volatile long second_gone;

static void
wait_for(unsigned wanted)
{
	unsigned seen;

	while ((seen = __atomic_load_n(&turn, __ATOMIC_SEQ_CST)) % 2 != wanted)
		CALL(SYS_umtx_op, &turn, UMTX_WAIT_UINT, seen, 0, 0, 0);
}

static void
pass_on(void)
{
	__atomic_fetch_add(&turn, 1, __ATOMIC_SEQ_CST);
	CALL(SYS_umtx_op, &turn, UMTX_WAKE, 1, 0, 0, 0);
}

static void
second_thread(void *argument)
{
	for (int i = 0; i < ROUNDS; i++) {
		wait_for(1);
		total += *(unsigned *)argument;
		pass_on();
	}
	CALL1(SYS_thr_exit, &second_gone);
}

static void
check_threads(void)
{
	static unsigned amount = 3;
	static long ids[2];
	struct thr_param how = { .start = second_thread, .argument = &amount,
	    .stack = (char *)memory(65536), .stack_size = 65536, .child_tid = &ids[0],
	    .parent_tid = &ids[1] };

	WANTED(CALL2(SYS_thr_new, &how, sizeof(how)) == 0);
	WANTED(ids[1] != 0);
	for (int i = 0; i < ROUNDS; i++) {
		wait_for(0);
		total += 1;
		pass_on();
	}
	while (second_gone == 0)
		CALL0(SYS_sched_yield);
	WANTED(total == ROUNDS * 4 && turn == 2 * ROUNDS);
}

static void
check_sockets(void)
{
	static unsigned char data[65536];
	struct sockaddr_in local = { .len = 16, .family = AF_INET, .port = 0x901f, /* port 8080 */
	    .address = 0x0100007f };
	struct interface_address loop = { .name = "lo0", .address = local };
	int waits, talks, two, three;
	long pid;

	loop.address.port = 0;
	loop.mask = loop.address;
	loop.mask.address = 0x000000ff;
	WANTED((waits = (int)CALL3(SYS_socket, AF_INET, SOCK_STREAM, 0)) >= 0);
	WANTED(CALL3(SYS_ioctl, waits, (unsigned)SIOCAIFADDR, &loop) == 0);
	WANTED(CALL3(SYS_bind, waits, &local, sizeof(local)) == 0);
	WANTED(CALL2(SYS_listen, waits, 1) == 0);
	if ((pid = child()) == 0) {
		WANTED((talks = (int)CALL3(SYS_socket, AF_INET, SOCK_STREAM, 0)) >= 0);
		WANTED(CALL3(SYS_connect, talks, &local, sizeof(local)) == 0);
		receive(talks, data, sizeof(data));
		WANTED(is_filled(data, sizeof(data), 4));
		fill(data, sizeof(data), 5);
		send(talks, data, sizeof(data));
		leave(0);
	}
	WANTED((talks = (int)CALL3(SYS_accept, waits, NULL, NULL)) >= 0);
	fill(data, sizeof(data), 4);
	send(talks, data, sizeof(data));
	receive(talks, data, sizeof(data));
	WANTED(is_filled(data, sizeof(data), 5));
	WANTED(ended_with(pid, 0));
	WANTED((two = (int)CALL3(SYS_socket, AF_INET, SOCK_DGRAM, 0)) >= 0);
	WANTED((three = (int)CALL3(SYS_socket, AF_INET, SOCK_DGRAM, 0)) >= 0);
	WANTED(CALL3(SYS_bind, two, &local, sizeof(local)) == 0);
	WANTED(CALL3(SYS_connect, three, &local, sizeof(local)) == 0);
	WANTED(CALL3(SYS_write, three, "datagram", 8) == 8);
	WANTED(CALL3(SYS_read, two, data, sizeof(data)) == 8 && memcmp(data, "datagram", 8) == 0);
}

static volatile int rung;

static void
ring(int number, struct siginfo *info, void *context)
{
	(void)info;
	(void)context;
	rung += number == SIGALRM;
}

static void
check_timers(void)
{
	struct timespec twenty = { 0, 20000000 };
	struct itimerval every = { 0, 10000, 0, 10000 }, never = { 0, 0, 0, 0 };
	struct signals none = { { 0 } };
	long long begun = now();

	WANTED(CALL2(SYS_nanosleep, &twenty, NULL) == 0);
	WANTED(now() - begun >= 20000000 && now() - begun < 200000000);
	handle(SIGALRM, ring);
	begun = now();
	WANTED(CALL3(SYS_setitimer, 0, &every, NULL) == 0);
	while (rung < 5)
		CALL1(SYS_sigsuspend, &none);
	WANTED(CALL3(SYS_setitimer, 0, &never, NULL) == 0);
	WANTED(now() - begun >= 49000000 && now() - begun < 500000000);
	begun = now();
	while (now() - begun < 3000000)
		; /* the scheduler preempts a busy process and resumes it */
}

/* Sum a series whose terms are rounded, so that a wrong bit in a register changes the result. */
static double
series(int terms, int yields)
{
	double sum = 0, power = 1;

	for (int i = 1; i <= terms; i++) {
		power /= 1.0078125;
		sum += power / i;
		if (yields)
			CALL0(SYS_sched_yield);
	}
	return (sum);
}

static void
check_floating_point(void)
{
	/* Volatile, because the riscv64 kernel does not copy floating-point registers to a child. */
	volatile double alone = series(300, 0);
	long first = child(), second;

	if (first == 0)
		leave(series(300, 1) == alone ? 0 : 1);
	if ((second = child()) == 0)
		leave(series(301, 1) > alone ? 0 : 1);
	WANTED(series(300, 1) == alone);
	WANTED(ended_with(first, 0) && ended_with(second, 0));
}

static const struct {
	const char *name;
	void (*run)(void);
} checks[] = {
	{ "processes", check_processes }, { "programs", check_programs }, { "pipes", check_pipes },
	{ "files", check_files }, { "redirection", check_redirection },
	{ "memory", check_memory }, { "signals", check_signals }, { "threads", check_threads },
	{ "sockets", check_sockets }, { "timers", check_timers },
	{ "floating point", check_floating_point },
};

int
main(int argc, char **argv, char **environment)
{
	int failed = 0, wanted = 0;

	variables = environment;
	if (argc > 1 && strcmp(argv[1], "-child") == 0)
		return (started(argc, argv));
	for (unsigned i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
		long pid;
		int state;

		if (argc > 1 && strcmp(argv[1], checks[i].name) != 0)
			continue;
		wanted++;
		if ((pid = child()) == 0) {
			checks[i].run();
			leave(0);
		}
		state = ended(pid);
		print(1, "%s: %s\n", checks[i].name, state == 0 ? "ok" : "failed");
		if ((state & 127) != 0)
			print(1, "  signal %d\n", state & 127);
		failed += state != 0;
	}
	if (wanted == 0) {
		print(2, "%s: there is no such check\n", argv[1]);
		return (2);
	}
	return (failed);
}
