/* amd64: 16550, local APIC timer, interrupt descriptor table.  SPDX-License-Identifier: BSD-2-Clause */
#include "../kernel.h"

#define	UART		0x3f8
#define	LAPIC		0xfee00000ul
#define	TIMER_VECTOR	0x20
#define	SPURIOUS_VECTOR	0xff
#define	KERNEL_CODE	8

struct trapframe {
	u64 rdi, rsi, rdx, rcx, r8, r9, rax, rbx, rbp, r10, r11, r12, r13, r14, r15;
	u32 trapno;
	u16 fs, gs;
	u64 addr;
	u32 flags;
	u16 es, ds;
	u64 err, rip, cs, rflags, rsp, ss;
};

struct gate {
	u16 low, selector, type, middle;
	u32 high, zero;
};

static struct gate idt[256] __attribute__((aligned(16)));
static u64 gdt[3] = { 0, 0x00209a0000000000, 0x0000920000000000 };

void invop_init(void);	/* only in the variant amd64-illumos */
void Xbpt(void), Xill(void), Xprot(void), Xpage(void), Xtimer(void), Xspurious(void);

static inline void
outb(u16 port, u8 value)
{
	__asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static inline u8
inb(u16 port)
{
	u8 value;

	__asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static inline void
lapic_write(u32 offset, u32 value)
{
	*(volatile u32 *)(LAPIC + offset) = value;
}

static void
set_gate(int vector, void (*handler)(void), int dpl)
{
	u64 address = (u64)handler;

	idt[vector] = (struct gate){ (u16)address, KERNEL_CODE, (u16)(0x8e00 | dpl << 13),
	    (u16)(address >> 16), (u32)(address >> 32), 0 };
}

void
machine_init(void)
{
	struct {
		u16 limit;
		u64 base;
	} __attribute__((packed)) table;

	table.limit = sizeof(gdt) - 1;
	table.base = (u64)gdt;
	__asm__ volatile("lgdt %0\n\tpushq $8\n\tleaq 1f(%%rip), %%rax\n\tpushq %%rax\n\t"
	    "lretq\n1:\tmovw $16, %%ax\n\tmovw %%ax, %%ss" : : "m"(table) : "rax", "memory");
#ifndef INVOP
	set_gate(3, Xbpt, 3);
#endif
	set_gate(6, Xill, 0);
	set_gate(13, Xprot, 0);
	set_gate(14, Xpage, 0);
	set_gate(TIMER_VECTOR, Xtimer, 0);
	set_gate(SPURIOUS_VECTOR, Xspurious, 0);
	table.limit = sizeof(idt) - 1;
	table.base = (u64)idt;
	__asm__ volatile("lidt %0" : : "m"(table));
#ifdef INVOP
	invop_init();
#endif
	outb(0x21, 0xff);	/* mask all interrupts of the 8259s */
	outb(0xa1, 0xff);
	outb(UART + 3, 3);	/* 8 data bits */
	outb(UART + 2, 7);	/* enable and clear the FIFOs */
	lapic_write(0xf0, 0x100 | SPURIOUS_VECTOR);
	lapic_write(0x3e0, 0xb);		/* divide the bus clock by 1 */
	lapic_write(0x320, 1 << 17 | TIMER_VECTOR);	/* periodic */
	lapic_write(0x380, 1000000);
}

void trap(struct trapframe *frame);

void
trap(struct trapframe *frame)
{
	if (frame->trapno == 100) {
		clock_interrupt();
		lapic_write(0xb0, 0);
		clock_preempt();
		return;
	}
	if (frame->trapno == 101)
		return;
	cnputs("trap ");
	print_number(frame->trapno, 10);
	cnputs(" at ");
	print_number(frame->rip, 16);
	cnputs("\n");
	panic("unexpected trap");
}

void
machine_thread(u64 *context, void (*entry)(void), u64 stack_top)
{
	u64 *sp = (u64 *)(stack_top - 8);

	*--sp = (u64)entry;
	for (int i = 0; i < 6; i++)
		*--sp = 0;
	*context = (u64)sp;
}

void
machine_idle(void)
{
	__asm__ volatile("hlt" : : : "memory");
}

/* Power off through QEMU's ACPI block (port 604h), or else reset. */
void
machine_off(void)
{
	__asm__ volatile("outw %0, %1" : : "a"((u16)0x2000), "Nd"((u16)0x604));
	outb(0x64, 0xfe);
}

u64
machine_interrupts_off(void)
{
	u64 flags;

	__asm__ volatile("pushfq\n\tpopq %0\n\tcli" : "=r"(flags) : : "memory");
	return flags >> 9 & 1;
}

void
machine_interrupts_restore(u64 state)
{
	if (state)
		__asm__ volatile("sti" : : : "memory");
}

void
uart_put(int c)
{
	while ((inb(UART + 5) & 0x20) == 0)
		;
	outb(UART, (u8)c);
}

int
uart_get(void)
{
	return inb(UART + 5) & 1 ? inb(UART) : -1;
}

void
spin_lock(struct spinlock *lock)
{
	u32 expected;

	do {
		expected = 0;
		__asm__ volatile("lock cmpxchgl %2, %1"
		    : "+a"(expected), "+m"(lock->held) : "r"(1) : "memory", "cc");
	} while (expected != 0);
	__asm__ volatile("lock incl %0" : "+m"(lock->acquired) : : "memory", "cc");
}

void
spin_unlock(struct spinlock *lock)
{
	u32 zero = 0;

	__asm__ volatile("xchgl %0, %1" : "+r"(zero), "+m"(lock->held) : : "memory");
}
