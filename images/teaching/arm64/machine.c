/* arm64: PL011, GICv2, virtual timer, PSCI.  SPDX-License-Identifier: BSD-2-Clause */
#include "../kernel.h"

#define	UART	0x09000000ul
#define	GICD	0x08000000ul
#define	GICC	0x08010000ul
#define	TIMER	27
#define	PERIOD	625000		/* 10 ms in counter ticks */

#define	REG(address)	(*(volatile u32 *)(address))
#define	READ(name) ({ u64 v_; __asm__ volatile("mrs %0, " #name : "=r"(v_)); v_; })
#define	WRITE(name, v) __asm__ volatile("msr " #name ", %0" : : "r"((u64)(v)) : "memory")

struct trapframe {
	u64 sp, lr, elr, spsr, esr, far, x[30];
};

void do_el1h_sync(void *thread, struct trapframe *frame);
void interrupt(struct trapframe *frame);
void bad_exception(struct trapframe *frame);

void
machine_init(void)
{
	REG(UART + 0x30) = 0;
	REG(UART + 0x2c) = 0x70;
	REG(UART + 0x30) = 0x301;
	REG(GICD) = 1;
	REG(GICD + 0x100) = 1u << TIMER;
	REG(GICC + 4) = 0xff;
	REG(GICC) = 1;
	WRITE(cntv_tval_el0, PERIOD);
	WRITE(cntv_ctl_el0, 1);
}

void
bad_exception(struct trapframe *frame)
{
	cnputs("exception ");
	print_number(frame->esr, 16);
	cnputs(" at ");
	print_number(frame->elr, 16);
	cnputs(" address ");
	print_number(frame->far, 16);
	cnputs("\n");
	panic("unexpected exception");
}

/* Pass a DTrace breakpoint to the hook, which returns 0 if it handled the breakpoint. */
void
do_el1h_sync(void *thread, struct trapframe *frame)
{
	(void)thread;
	if (frame->esr >> 26 == 0x3c && (frame->esr & 0xffff) == 0x40d &&
	    dtrace_invop_jump_addr != 0 && dtrace_invop_jump_addr(frame) == 0)
		return;
	bad_exception(frame);
}

void
interrupt(struct trapframe *frame)
{
	u32 number = REG(GICC + 0xc);

	(void)frame;
	if ((number & 0x3ff) == TIMER) {
		WRITE(cntv_tval_el0, PERIOD);
		clock_interrupt();
	}
	REG(GICC + 0x10) = number;
	if ((number & 0x3ff) == TIMER)
		clock_preempt();
}

void
machine_thread(u64 *context, void (*entry)(void), u64 stack_top)
{
	u64 *sp = (u64 *)(stack_top - 96);

	for (int i = 0; i < 12; i++)
		sp[i] = 0;
	sp[1] = (u64)entry;
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
	register u64 x0 __asm__("x0") = 0x84000008;

	__asm__ volatile("hvc #0" : "+r"(x0) : : "memory");
}

u64
machine_interrupts_off(void)
{
	u64 state = READ(daif);

	__asm__ volatile("msr daifset, #2" : : : "memory");
	return !(state >> 7 & 1);
}

void
machine_interrupts_restore(u64 state)
{
	if (state)
		__asm__ volatile("msr daifclr, #2" : : : "memory");
}

void
uart_put(int c)
{
	while (REG(UART + 0x18) & 1 << 5)
		;
	REG(UART) = (u32)c;
}

int
uart_get(void)
{
	return REG(UART + 0x18) & 1 << 4 ? -1 : (int)(REG(UART) & 0xff);
}
