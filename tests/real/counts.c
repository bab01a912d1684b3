// Counts how often its threads, a child of vfork(2) and code that it has written call a function.
#include <sys/types.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static atomic_int count;

__attribute__((noinline)) void
called(long number)
{
	count += number >= 0;
}

static void *
work(void *number)
{
	for (long n = 0; n < 20 + (long)number; n++)
		called(n);
	return NULL;
}

// Code that jumps to the address that follows it.
#if defined(__amd64__)
static const uint8_t jump[] = {0xff, 0x25, 0, 0, 0, 0}; // jmp *(%rip)
#elif defined(__aarch64__)
static const uint32_t jump[] = {0x58000050, 0xd61f0200}; // ldr x16, 8; br x16
#else
static const uint32_t jump[] = {0x297, 0x0102b283, 0x28067, 0x13}; // auipc; ld t0, 16(t0); jr; nop
#endif

static void
write_code(uint8_t *code, void (*target)(long))
{
	memcpy(code, jump, sizeof(jump));
	memcpy(code + sizeof(jump), &target, sizeof(target));
#if defined(__riscv)
	__asm__ volatile("fence.i" ::: "memory"); // __clear_cache aborts on FreeBSD/riscv64
#else
	__builtin___clear_cache((char *)code, (char *)code + 64);
#endif
}

static void
nothing(long number)
{
}

int
main(int words, char **word)
{
	pthread_t threads[3];
	uint8_t *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
	    MAP_ANON | MAP_PRIVATE, -1, 0);

	if (words > 1) {
		for (int n = 0; n < 100; n++)
			called(n);
		return 0;
	}
	for (long n = 0; n < 3; n++)
		pthread_create(&threads[n], NULL, work, (void *)n);
	for (int n = 0; n < 3; n++)
		pthread_join(threads[n], NULL);
	for (int n = 0; n < 8; n++) {
		write_code(code, n % 2 ? nothing : called);
		((void (*)(long))code)(n);
	}
	if (fork() == 0) { // a copy, which is not counted
		for (int n = 0; n < 7; n++)
			called(n);
		_exit(0);
	}
	wait(NULL);
	if (vfork() == 0) { // shares the memory, and is counted
		for (int n = 0; n < 5; n++)
			called(n);
		execl("/bin/echo", "echo", "executed", NULL);
		_exit(1);
	}
	wait(NULL);
	printf("called %d times\n", count);
	fflush(stdout);
	execl("/bin/echo", "echo", "end", NULL);
	return 1;
}
