/*
 * amd64: the trap vectors of DTrace on illumos.  SPDX-License-Identifier: BSD-2-Clause
 *
 * The vector switches to a separate stack (IST1), makes the breakpoint look like an invalid opcode
 * and builds struct regs.  dtrace_invop gets the address and returns the kind of the replaced
 * instruction, which this file emulates.
 */
#include "regs.h"

	.text
/*
 * Entry points of the IDT.  With page table isolation, only this page is mapped while a program
 * runs, and code in this page switches the page tables; this kernel has no programs.
 */
	.balign	4096
	.globl	tr_brktrap
	.type	tr_brktrap, @function
tr_brktrap:
	testb	$3, 8(%rsp)		/* for a trap from the kernel, its page tables are in use */
	jz	brktrap
	jmp	invop_user
	.size	tr_brktrap, . - tr_brktrap

	.globl	tr_invoptrap
	.type	tr_invoptrap, @function
tr_invoptrap:
	testb	$3, 8(%rsp)
	jz	invoptrap
	jmp	invop_user
	.size	tr_invoptrap, . - tr_invoptrap

	.globl	tr_iret_kernel
	.type	tr_iret_kernel, @function
tr_iret_kernel:
	iretq
	.size	tr_iret_kernel, . - tr_iret_kernel

	.balign	4096
	.globl	brktrap
	.type	brktrap, @function
brktrap:
	decq	(%rsp)			/* INT3 pushed the address after itself; go back */
	pushq	$1			/* error code that marks a breakpoint */
	jmp	invop_kernel
	.size	brktrap, . - brktrap

	.globl	invoptrap
	.type	invoptrap, @function
invoptrap:
	pushq	$0
	.globl	invop_kernel
invop_kernel:
	pushq	$NO_TRAPNO
	subq	$REGS_TRAPNO, %rsp	/* the other fields of struct regs */
	movq	%rdi, REGS_RDI(%rsp)
	movq	%rsi, REGS_RSI(%rsp)
	movq	%rdx, REGS_RDX(%rsp)
	movq	%rcx, REGS_RCX(%rsp)
	movq	%r8, REGS_R8(%rsp)
	movq	%r9, REGS_R9(%rsp)
	movq	%rax, REGS_RAX(%rsp)
	movq	%rbx, REGS_RBX(%rsp)
	movq	%rbp, REGS_RBP(%rsp)
	movq	%r10, REGS_R10(%rsp)
	movq	%r11, REGS_R11(%rsp)
	movq	%r12, REGS_R12(%rsp)
	movq	%r13, REGS_R13(%rsp)
	movq	%r14, REGS_R14(%rsp)
	movq	%r15, REGS_R15(%rsp)
	movq	$0, REGS_FSBASE(%rsp)
	movq	$0, REGS_GSBASE(%rsp)
	movq	$0, REGS_DS(%rsp)
	movw	%ds, REGS_DS(%rsp)
	movq	$0, REGS_ES(%rsp)
	movw	%es, REGS_ES(%rsp)
	movq	$0, REGS_FS(%rsp)
	movw	%fs, REGS_FS(%rsp)
	movq	$0, REGS_GS(%rsp)
	movw	%gs, REGS_GS(%rsp)
	movq	%rbp, REGS_SAVFP(%rsp)	/* for stack unwinders */
	movq	REGS_RIP(%rsp), %rdi
	movq	%rdi, REGS_SAVPC(%rsp)
	cld

	/* dtrace_invop(address, stack, rax): stack[0] is the return address of the function. */
	movq	REGS_RSP(%rsp), %rsi
	movq	REGS_RAX(%rsp), %rdx
	pushq	(%rsi)
	movq	%rsp, %rsi
	subq	$8, %rsp
	call	dtrace_invop
	.globl	dtrace_invop_callsite
dtrace_invop_callsite:
	addq	$16, %rsp
	cmpl	$DTRACE_INVOP_PUSHL_EBP, %eax
	je	invop_push
	cmpl	$DTRACE_INVOP_LEAVE, %eax
	je	invop_leave
	cmpl	$DTRACE_INVOP_NOP, %eax
	je	invop_nop
	cmpl	$DTRACE_INVOP_RET, %eax
	je	invop_ret
	movq	%rsp, %rdi		/* no provider claimed the trap */
	call	invop_unexpected
	ud2
	.size	invoptrap, . - invoptrap

	/* Restore the registers, and point the stack pointer at the frame that the CPU pushed. */
	.macro	RESTORE
	movq	REGS_RDI(%rsp), %rdi
	movq	REGS_RSI(%rsp), %rsi
	movq	REGS_RDX(%rsp), %rdx
	movq	REGS_RCX(%rsp), %rcx
	movq	REGS_R8(%rsp), %r8
	movq	REGS_R9(%rsp), %r9
	movq	REGS_RAX(%rsp), %rax
	movq	REGS_RBX(%rsp), %rbx
	movq	REGS_RBP(%rsp), %rbp
	movq	REGS_R10(%rsp), %r10
	movq	REGS_R11(%rsp), %r11
	movq	REGS_R12(%rsp), %r12
	movq	REGS_R13(%rsp), %r13
	movq	REGS_R14(%rsp), %r14
	movq	REGS_R15(%rsp), %r15
	addq	$REGS_RIP, %rsp
	.endm

	.globl	invop_push
	.type	invop_push, @function
invop_push:				/* emulate push %rbp (one byte): push to the function's stack */
	RESTORE
	pushq	%rax
	movq	8 + FRAME_RSP(%rsp), %rax
	subq	$8, %rax
	movq	%rbp, (%rax)
	movq	%rax, 8 + FRAME_RSP(%rsp)
	popq	%rax
	incq	FRAME_RIP(%rsp)
	jmp	tr_iret_kernel
	.size	invop_push, . - invop_push

	.globl	invop_leave
	.type	invop_leave, @function
invop_leave:				/* emulate leave: copy %rbp to %rsp, and pop %rbp */
	RESTORE
	pushq	%rax
	leaq	8(%rbp), %rax
	movq	%rax, 8 + FRAME_RSP(%rsp)
	movq	(%rbp), %rbp
	popq	%rax
	incq	FRAME_RIP(%rsp)
	jmp	tr_iret_kernel
	.size	invop_leave, . - invop_leave

	.globl	invop_nop
	.type	invop_nop, @function
invop_nop:
	RESTORE
	incq	FRAME_RIP(%rsp)
	jmp	tr_iret_kernel
	.size	invop_nop, . - invop_nop

	.globl	invop_ret
	.type	invop_ret, @function
invop_ret:				/* emulate ret: pop the return address from the function's stack */
	RESTORE
	pushq	%rax
	movq	8 + FRAME_RSP(%rsp), %rax
	movq	(%rax), %rax
	movq	%rax, 8 + FRAME_RIP(%rsp)
	addq	$8, 8 + FRAME_RSP(%rsp)
	popq	%rax
	jmp	tr_iret_kernel
	.size	invop_ret, . - invop_ret

	.type	invop_user, @function
invop_user:
	ud2
	.size	invop_user, . - invop_user

	.bss
	.balign	4096
	.skip	4096
	.globl	dbg_stack_top
dbg_stack_top:
