/* amd64, illumos variant: the interrupt stack and the DTrace hook.  SPDX-License-Identifier: BSD-2-Clause */
#include "../kernel.h"
#include "regs.h"

#define	KERNEL_CODE	8
#define	TSS_SELECTOR	0x18
#define	IST		1

struct regs {
	u64 savfp, savpc, rdi, rsi, rdx, rcx, r8, r9, rax, rbx, rbp, r10, r11, r12, r13, r14, r15;
	u64 fsbase, gsbase, ds, es, fs, gs, trapno, err, rip, cs, rfl, rsp, ss;
};
_Static_assert(sizeof(struct regs) == REGS_SS + 8, "regs.h");

struct gate {
	u16 low, selector, type, middle;
	u32 high, zero;
};

struct table {
	u16 limit;
	u64 base;
} __attribute__((packed));

typedef int invop_handler(u64 address, u64 *stack, u64 rax);

/* The handler of a provider.  illumos has a list of handlers. */
invop_handler *dtrace_invop_handler;

static u64 gdt[5] = { 0, 0x00209a0000000000, 0x0000920000000000 };
static u8 tss[104] __attribute__((aligned(16)));
extern u8 dbg_stack_top[];

void tr_brktrap(void), tr_invoptrap(void);
int dtrace_invop(u64 address, u64 *stack, u64 rax);
void invop_unexpected(struct regs *regs);

__attribute__((noinline)) int
dtrace_invop(u64 address, u64 *stack, u64 rax)
{
	return dtrace_invop_handler != 0 ? dtrace_invop_handler(address, stack, rax) : 0;
}

void
invop_unexpected(struct regs *regs)
{
	cnputs(regs->err ? "breakpoint at " : "invalid opcode at ");
	print_number(regs->rip, 16);
	cnputs("\n");
	panic("unexpected trap");
}

static void
set_gate(struct gate *idt, int vector, void (*handler)(void), int dpl)
{
	u64 address = (u64)handler;

	idt[vector] = (struct gate){ (u16)address, KERNEL_CODE, (u16)(0x8e00 | dpl << 13 | IST),
	    (u16)(address >> 16), (u32)(address >> 32), 0 };
}

/* After machine_init(): load a task state segment with an interrupt stack, and set two gates. */
void
invop_init(void)
{
	struct table table;
	u64 base = (u64)tss, top = (u64)dbg_stack_top;

	for (int i = 0; i < 8; i++)
		tss[36 + i] = (u8)(top >> 8 * i);	/* IST1 */
	tss[102] = sizeof(tss);				/* no I/O permission bitmap */
	gdt[3] = (sizeof(tss) - 1) | (base & 0xffffff) << 16 | 0x89ul << 40 | (base >> 24 & 0xff) << 56;
	gdt[4] = base >> 32;
	table.limit = sizeof(gdt) - 1;
	table.base = (u64)gdt;
	__asm__ volatile("lgdt %0\n\tltr %w1" : : "m"(table), "r"(TSS_SELECTOR) : "memory");
	__asm__ volatile("sidt %0" : "=m"(table));
	set_gate((struct gate *)table.base, 3, tr_brktrap, 3);
	set_gate((struct gate *)table.base, 6, tr_invoptrap, 0);
}
