/* The teaching kernel: console, clock, two threads, a prompt.  SPDX-License-Identifier: BSD-2-Clause */
#include "kernel.h"

#ifndef INVOP
int (*dtrace_invop_jump_addr)(struct trapframe *);
#endif

static u64 thread_main_context, thread_worker_context;
static u8 worker_stack[8192] __attribute__((aligned(16)));
static volatile int worker_runs;

volatile u64 ticks;
volatile u64 worker_turns;
struct spinlock console_lock, work_lock;
u64 work_done;

void
cnputs(const char *text)
{
	while (*text != '\0') {
		if (*text == '\n')
			uart_put('\r');
		uart_put(*text++);
	}
}

void
print_number(u64 value, int base)
{
	char digits[24];
	int at = sizeof(digits) - 1;

	digits[at] = '\0';
	do {
		digits[--at] = "0123456789abcdef"[value % base];
		value /= base;
	} while (value != 0);
	cnputs(digits + at);
}

__attribute__((noinline)) void
vpanic(const char *why)
{
	machine_interrupts_off();
	cnputs("panic: ");
	cnputs(why);
	cnputs("\n");
	machine_off();
	for (;;)
		machine_idle();
}

void
panic(const char *why)
{
	vpanic(why);
}

/* Clock interrupt: count a tick; cngetc() then lets the worker thread run. */
void
clock_interrupt(void)
{
	ticks++;
	clock_beat();
}

static void
yield(void)
{
	if (worker_runs) {
		worker_runs = 0;
		cpu_switch(&thread_worker_context, &thread_main_context);
	} else {
		worker_runs = 1;
		cpu_switch(&thread_main_context, &thread_worker_context);
	}
}

/* Amounts stay below the limit of charge(), however long the kernel is idle. */
static void
worker(void)
{
	for (;;) {
		spin_lock(&work_lock);
		work_done += classify((int)(worker_turns & 7), worker_turns & 0x7ffff);
		spin_unlock(&work_lock);
		worker_turns++;
		yield();
	}
}

__attribute__((noinline)) int
cngetc(void)
{
	static u64 seen;
	int c;

	while ((c = uart_get()) < 0) {
		if (ticks != seen) {
			seen = ticks;
			yield();
		}
		machine_idle();
	}
	return c;
}

struct command {
	const char *name;
	const char *help;
	void (*run)(void);
};

static void
run_ticks(void)
{
	cnputs("the clock ticks\n");
}

static void
run_strings(void)
{
	print_number(strlen("hello"), 10);
	cnputs(" ");
	print_number(crc32(0, "hello", 5), 16);
	cnputs("\n");
}

static void
run_lesson(void)
{
	for (int kind = 0; kind < 9; kind++) {
		cnputs(describe(kind));
		cnputs(" ");
		print_number(classify(kind, 1000 + kind), 10);
		cnputs("\n");
	}
}

static void
run_keep(void)
{
	note_keep("buy milk");
	note_keep("call the bank");
	note_keep("ask Ada about the engine");
	cnputs("3 notes kept\n");
}

static void
run_letters(void)
{
	print_number(note_letters(), 10);
	cnputs("\n");
}

static void
run_off(void)
{
	machine_off();
}

/* A table with pointers; these need no relocation, because the image has a fixed address. */
static const struct command commands[] = {
	{ "ticks", "is the clock running", run_ticks },
	{ "strings", "call the string functions", run_strings },
	{ "lesson", "run the code shapes", run_lesson },
	{ "keep", "keep three notes", run_keep },
	{ "letters", "count the letters of all notes", run_letters },
	{ "off", "power off", run_off },
};
#define	NCOMMANDS	(int)(sizeof(commands) / sizeof(commands[0]))

static void
run_command(const char *line)
{
	if (*line == '\0')
		return;
	for (int i = 0; i < NCOMMANDS; i++) {
		if (strcmp(line, commands[i].name) == 0) {
			commands[i].run();
			return;
		}
	}
	for (int i = 0; i < NCOMMANDS; i++) {
		cnputs("  ");
		cnputs(commands[i].name);
		cnputs("\t");
		cnputs(commands[i].help);
		cnputs("\n");
	}
}

static void
read_line(char *line, int size)
{
	int at = 0;

	for (;;) {
		int c = cngetc();
		if (c == '\r' || c == '\n')
			break;
		if (at < size - 1) {
			line[at++] = (char)c;
			uart_put(c);
		}
	}
	line[at] = '\0';
	cnputs("\n");
}

void
kernel_main(void)
{
	char line[64];

	machine_init();
	threads_init();
	cnputs("The teaching kernel\n");
	machine_thread(&thread_worker_context, worker,
	    (u64)(worker_stack + sizeof(worker_stack)));
	machine_interrupts_restore(1);
	while (ticks < 3)
		machine_idle();
	while (worker_turns < 4)
		yield();
	spin_lock(&work_lock);
	cnputs("Two threads, work done ");
	print_number(work_done, 10);
	cnputs("\n");
	spin_unlock(&work_lock);
	for (;;) {
		cnputs("teaching> ");
		read_line(line, sizeof(line));
		run_command(line);
	}
}
