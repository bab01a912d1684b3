/* riscv64: 16550, SBI timer and power.  SPDX-License-Identifier: BSD-2-Clause */
#include "../kernel.h"

#define	UART	0x10000000ul
#define	PERIOD	100000		/* 10 ms in timebase ticks */
#define	READ(name) ({ u64 v_; __asm__ volatile("csrr %0, " #name : "=r"(v_)); v_; })

struct trapframe {
	u64 ra, sp, gp, tp, t[7], s[12], a[8], sepc, sstatus, stval, scause;
};

void do_trap_supervisor(struct trapframe *frame);

static u64
sbi_call(u64 extension, u64 function, u64 argument)
{
	register u64 a0 __asm__("a0") = argument;
	register u64 a1 __asm__("a1") = 0;
	register u64 a6 __asm__("a6") = function;
	register u64 a7 __asm__("a7") = extension;

	__asm__ volatile("ecall" : "+r"(a0), "+r"(a1) : "r"(a6), "r"(a7) : "memory");
	return a1;
}

static void
set_timer(void)
{
	sbi_call(0x54494d45, 0, READ(time) + PERIOD);
}

void
machine_init(void)
{
	volatile u8 *uart = (volatile u8 *)UART;

	uart[3] = 3;
	uart[2] = 7;
	__asm__ volatile("csrw sie, %0" : : "r"(1ul << 5));
	set_timer();
}

void
do_trap_supervisor(struct trapframe *frame)
{
	if (frame->scause == (1ul << 63 | 5)) {
		set_timer();
		clock_interrupt();
		clock_preempt();
		return;
	}
	/* Pass a breakpoint to the DTrace hook, which returns 0 if it handled the breakpoint. */
	if (frame->scause == 3 && dtrace_invop_jump_addr != 0 &&
	    dtrace_invop_jump_addr(frame) == 0)
		return;
	cnputs("exception ");
	print_number(frame->scause, 16);
	cnputs(" at ");
	print_number(frame->sepc, 16);
	cnputs(" address ");
	print_number(frame->stval, 16);
	cnputs("\n");
	panic("unexpected exception");
}

void
machine_thread(u64 *context, void (*entry)(void), u64 stack_top)
{
	u64 *sp = (u64 *)(stack_top - 112);

	for (int i = 0; i < 14; i++)
		sp[i] = 0;
	sp[0] = (u64)entry;
	*context = (u64)sp;
}

void
machine_idle(void)
{
	__asm__ volatile("wfi" : : : "memory");
}

void
machine_off(void)
{
	sbi_call(0x53525354, 0, 0);
}

u64
machine_interrupts_off(void)
{
	u64 state;

	__asm__ volatile("csrrci %0, sstatus, 2" : "=r"(state) : : "memory");
	return state >> 1 & 1;
}

void
machine_interrupts_restore(u64 state)
{
	if (state)
		__asm__ volatile("csrsi sstatus, 2" : : : "memory");
}

void
uart_put(int c)
{
	volatile u8 *uart = (volatile u8 *)UART;

	while ((uart[5] & 0x20) == 0)
		;
	uart[0] = (u8)c;
}

int
uart_get(void)
{
	volatile u8 *uart = (volatile u8 *)UART;

	return uart[5] & 1 ? uart[0] : -1;
}
