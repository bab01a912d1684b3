/* Declarations shared by the files of the teaching kernel.  SPDX-License-Identifier: BSD-2-Clause */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef unsigned long size_t;

struct trapframe;

/* machine.c of each architecture */
void machine_init(void);
void machine_thread(u64 *context, void (*entry)(void), u64 stack_top);
void machine_idle(void);
void machine_off(void);
u64 machine_interrupts_off(void);
void machine_interrupts_restore(u64 state);
void uart_put(int c);
int uart_get(void); /* returns -1 if there is no input */

/* Switch threads: push the callee-saved registers, save the stack pointer in *from, load *to. */
void cpu_switch(u64 *from, u64 *to);

/* The DTrace hook: the handler of breakpoints in the kernel, or null. */
extern int (*dtrace_invop_jump_addr)(struct trapframe *);

#ifdef THREADS
/* threads.c of the races kernel; a timer interrupt calls clock_beat() first, clock_preempt() last. */
void threads_init(void);
void clock_beat(void);
void clock_preempt(void);
#else
#define	threads_init()
#define	clock_beat()
#define	clock_preempt()
#endif

/* kernel.c */
void kernel_main(void);
void clock_interrupt(void);
void panic(const char *why);
void vpanic(const char *why);
int cngetc(void);
void cnputs(const char *text);
void print_number(u64 value, int base);

/* machine.c or start.S: use LL/SC or other atomic instructions */
struct spinlock {
	volatile u32 held;
	u32 acquired;
};
void spin_lock(struct spinlock *lock);
void spin_unlock(struct spinlock *lock);

/* string.c */
size_t strlen(const char *s);
int memcmp(const void *a, const void *b, size_t n);
int strcmp(const char *a, const char *b);
void *memcpy(void *to, const void *from, size_t n);
void *memset(void *to, int c, size_t n);
u64 strtoul(const char *text, char **end, int base);

/* checksum.c */
u32 crc32(u32 crc, const void *data, size_t n);
u32 fletcher32(const u16 *data, size_t words);
u32 adler32(const u8 *data, size_t n);

/* notes.c: has a deliberate bug */
void note_keep(const char *text);
u64 note_letters(void);

/* lesson.c: code patterns to probe */
u64 classify(int kind, u64 value);
u64 fibonacci(int n);
u64 collatz(u64 n);
u64 tail_even(u64 n);
u64 account(u64 amount);
u64 refund(u64 amount);
u64 audit(u64 amount);
const char *describe(int kind);
