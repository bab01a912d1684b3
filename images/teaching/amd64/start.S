/*
 * amd64: two entry points, the trap vectors, the thread switch.  SPDX-License-Identifier: BSD-2-Clause
 *
 * btext is entered like FreeBSD's: in long mode, with the first GiB mapped at 0 and at KERNBASE.
 * pvh_start is the entry point for QEMU -kernel: in 32-bit protected mode, without paging.
 */
#define	KERNBASE	0xffffffff80000000

	.section .note.pvh, "a", @note
	.long	4, 8, 18		/* XEN_ELFNOTE_PHYS32_ENTRY */
	.asciz	"Xen"
	.quad	pvh_start - KERNBASE

	.text
	.globl	btext
	.type	btext, @function
btext:
	cli
	/* New page tables: the first GiB at 0 and at KERNBASE, and the devices below 4 GiB. */
	movl	$(boot_pd - KERNBASE), %edi
	movl	$(device_pd - KERNBASE), %esi
	xorl	%ecx, %ecx
2:	movl	%ecx, %eax		/* 512 pages of 2 MiB: present, writable, large */
	shll	$21, %eax
	orl	$0x83, %eax
	movq	%rax, (%rdi,%rcx,8)
	addl	$0xc0000010, %eax	/* uncached */
	movq	%rax, (%rsi,%rcx,8)
	incl	%ecx
	cmpl	$512, %ecx
	jne	2b
	movl	$(boot_pdp - KERNBASE), %edx
	leaq	3(%rdi), %rax
	movq	%rax, (%rdx)
	movq	%rax, 510*8(%rdx)
	leaq	3(%rsi), %rax
	movq	%rax, 3*8(%rdx)
	movl	$(boot_pml4 - KERNBASE), %edi
	leaq	3(%rdx), %rax
	movq	%rax, (%rdi)
	movq	%rax, 511*8(%rdi)
	movq	%rdi, %cr3
	movq	$kernel_stack_top, %rsp
	xorl	%ebp, %ebp
	call	kernel_main
1:	hlt
	jmp	1b
	.size	btext, . - btext

	.code32
	.globl	pvh_start
	.type	pvh_start, @function
pvh_start:
	cli
	movl	$(boot_pd - KERNBASE), %edi
	xorl	%ecx, %ecx
1:	movl	%ecx, %eax		/* 512 pages of 2 MiB: present, writable, large */
	shll	$21, %eax
	orl	$0x83, %eax
	movl	%eax, (%edi,%ecx,8)
	movl	$0, 4(%edi,%ecx,8)
	incl	%ecx
	cmpl	$512, %ecx
	jne	1b
	movl	$(boot_pdp - KERNBASE), %edi
	movl	$(boot_pd - KERNBASE + 3), %eax
	movl	%eax, (%edi)
	movl	%eax, 510*8(%edi)
	movl	$(boot_pml4 - KERNBASE), %edi
	movl	$(boot_pdp - KERNBASE + 3), %eax
	movl	%eax, (%edi)
	movl	%eax, 511*8(%edi)
	movl	%edi, %cr3
	movl	%cr4, %eax
	orl	$0x20, %eax
	movl	%eax, %cr4
	movl	$0xc0000080, %ecx
	rdmsr
	orl	$0x100, %eax
	wrmsr
	movl	%cr0, %eax
	orl	$0x80010001, %eax
	movl	%eax, %cr0
	lgdt	(boot_gdtr - KERNBASE)
	ljmp	$8, $(1f - KERNBASE)
	.code64
1:	movw	$16, %ax
	movw	%ax, %ss
	movw	%ax, %ds
	movw	%ax, %es
	movabsq	$btext, %rax
	jmp	*%rax
	.size	pvh_start, . - pvh_start

/*
 * The breakpoint vector, like FreeBSD's: build the trap frame below the CPU's frame, then jump to
 * the DTrace hook if it is set and the trap came from the kernel.
 */
	.globl	Xbpt
	.type	Xbpt, @function
Xbpt:
	subq	$152, %rsp		/* room for the frame up to tf_rip */
	movl	$3, 120(%rsp)		/* tf_trapno = T_BPTFLT */
	movq	$0, 128(%rsp)
	movq	$0, 144(%rsp)
	.globl	alltraps
	.type	alltraps, @function
alltraps:
	movq	%rdi, 0(%rsp)
	movq	%rsi, 8(%rsp)
	movq	%rdx, 16(%rsp)
	movq	%rcx, 24(%rsp)
	movq	%r8, 32(%rsp)
	movq	%r9, 40(%rsp)
	movq	%rax, 48(%rsp)
	movq	%rbx, 56(%rsp)
	movq	%rbp, 64(%rsp)
	movq	%r10, 72(%rsp)
	movq	%r11, 80(%rsp)
	movq	%r12, 88(%rsp)
	movq	%r13, 96(%rsp)
	movq	%r14, 104(%rsp)
	movq	%r15, 112(%rsp)
	movw	%fs, 124(%rsp)
	movw	%gs, 126(%rsp)
	movw	%es, 140(%rsp)
	movw	%ds, 142(%rsp)
	movl	$1, 136(%rsp)		/* TF_HASSEGS */
	cld
#ifndef INVOP
	cmpl	$3, 120(%rsp)
	jne	calltrap
	testb	$3, 160(%rsp)
	jnz	calltrap
	cmpq	$0, dtrace_invop_jump_addr(%rip)
	je	calltrap
	leaq	calltrap(%rip), %rax
	movq	%rax, dtrace_invop_calltrap_addr(%rip)
	movq	48(%rsp), %rax
	jmp	*dtrace_invop_jump_addr(%rip)
#endif
	.size	Xbpt, . - Xbpt

	.globl	calltrap
	.type	calltrap, @function
calltrap:
	movq	%rsp, %rdi
	call	trap
	.globl	doreti_exit
doreti_exit:
	movq	0(%rsp), %rdi
	movq	8(%rsp), %rsi
	movq	16(%rsp), %rdx
	movq	24(%rsp), %rcx
	movq	32(%rsp), %r8
	movq	40(%rsp), %r9
	movq	48(%rsp), %rax
	movq	56(%rsp), %rbx
	movq	64(%rsp), %rbp
	movq	72(%rsp), %r10
	movq	80(%rsp), %r11
	movq	88(%rsp), %r12
	movq	96(%rsp), %r13
	movq	104(%rsp), %r14
	movq	112(%rsp), %r15
	addq	$152, %rsp
	iretq
	.size	calltrap, . - calltrap

	.macro	VECTOR name number code
	.globl	\name
	.type	\name, @function
\name:
	.if \code
	subq	$144, %rsp
	.else
	subq	$152, %rsp
	movq	$0, 144(%rsp)
	.endif
	movl	$\number, 120(%rsp)
	movq	$0, 128(%rsp)
	jmp	alltraps
	.size	\name, . - \name
	.endm

	VECTOR	Xill 1 0
	VECTOR	Xprot 9 1
	VECTOR	Xpage 12 1
	VECTOR	Xtimer 100 0
	VECTOR	Xspurious 101 0

	.globl	cpu_switch
	.type	cpu_switch, @function
cpu_switch:
	pushq	%rbp
	pushq	%rbx
	pushq	%r12
	pushq	%r13
	pushq	%r14
	pushq	%r15
	movq	%rsp, (%rdi)
	movq	(%rsi), %rsp
	popq	%r15
	popq	%r14
	popq	%r13
	popq	%r12
	popq	%rbx
	popq	%rbp
	ret
	.size	cpu_switch, . - cpu_switch

	.data
	.balign	8
#ifndef INVOP
	.globl	dtrace_invop_calltrap_addr
dtrace_invop_calltrap_addr:
	.quad	0
#endif
boot_gdt:
	.quad	0, 0x00209a0000000000, 0x0000920000000000
boot_gdtr:
	.word	. - boot_gdt - 1
	.quad	boot_gdt - KERNBASE

	.bss
	.balign	4096
boot_pml4:
	.skip	4096
boot_pdp:
	.skip	4096
boot_pd:
	.skip	4096
device_pd:
	.skip	4096
	.skip	16384
	.globl	kernel_stack_top
kernel_stack_top:
