/*
 * arm64: entry, exception vectors, the thread switch.  SPDX-License-Identifier: BSD-2-Clause
 *
 * Entered in EL1 with the MMU off, like FreeBSD's kernel; the MMU stays off.
 */
	.text
	.globl	_start
	.type	_start, @function
_start:
	msr	daifset, #15
	mov	x0, #(3 << 20)		/* do not trap SIMD instructions */
	msr	cpacr_el1, x0
	adrp	x0, kernel_stack_top
	add	x0, x0, :lo12:kernel_stack_top
	mov	sp, x0
	adrp	x0, exception_vectors
	add	x0, x0, :lo12:exception_vectors
	msr	vbar_el1, x0
	isb
	adrp	x0, bss_begin
	add	x0, x0, :lo12:bss_begin
	adrp	x1, bss_end
	add	x1, x1, :lo12:bss_end
1:	cmp	x0, x1
	b.hs	2f
	str	xzr, [x0], #8
	b	1b
2:	mov	x29, xzr
	bl	kernel_main
3:	wfi
	b	3b
	.size	_start, . - _start

/* The trap frame of FreeBSD's arm64 port: 288 bytes, 128 bytes below the interrupted stack. */
	.macro	SAVE_REGS
	sub	sp, sp, #(288 + 128)
	stp	x28, x29, [sp, #(48 + 28 * 8)]
	stp	x26, x27, [sp, #(48 + 26 * 8)]
	stp	x24, x25, [sp, #(48 + 24 * 8)]
	stp	x22, x23, [sp, #(48 + 22 * 8)]
	stp	x20, x21, [sp, #(48 + 20 * 8)]
	stp	x18, x19, [sp, #(48 + 18 * 8)]
	stp	x16, x17, [sp, #(48 + 16 * 8)]
	stp	x14, x15, [sp, #(48 + 14 * 8)]
	stp	x12, x13, [sp, #(48 + 12 * 8)]
	stp	x10, x11, [sp, #(48 + 10 * 8)]
	stp	x8, x9, [sp, #(48 + 8 * 8)]
	stp	x6, x7, [sp, #(48 + 6 * 8)]
	stp	x4, x5, [sp, #(48 + 4 * 8)]
	stp	x2, x3, [sp, #(48 + 2 * 8)]
	stp	x0, x1, [sp, #48]
	add	x18, sp, #(288 + 128)
	mrs	x10, elr_el1
	mrs	x11, spsr_el1
	mrs	x12, esr_el1
	mrs	x13, far_el1
	stp	x18, x30, [sp]
	stp	x10, x11, [sp, #16]
	stp	x12, x13, [sp, #32]
	ldr	x18, [sp, #(48 + 18 * 8)]
	.endm

/* C functions preserve x19 to x28, so these are not restored, as in FreeBSD. */
	.macro	RESTORE_REGS
	msr	daifset, #2
	ldp	x18, x30, [sp]
	ldp	x10, x11, [sp, #16]
	msr	elr_el1, x10
	msr	spsr_el1, x11
	ldp	x0, x1, [sp, #48]
	ldp	x2, x3, [sp, #(48 + 2 * 8)]
	ldp	x4, x5, [sp, #(48 + 4 * 8)]
	ldp	x6, x7, [sp, #(48 + 6 * 8)]
	ldp	x8, x9, [sp, #(48 + 8 * 8)]
	ldp	x10, x11, [sp, #(48 + 10 * 8)]
	ldp	x12, x13, [sp, #(48 + 12 * 8)]
	ldp	x14, x15, [sp, #(48 + 14 * 8)]
	ldp	x16, x17, [sp, #(48 + 16 * 8)]
	ldr	x29, [sp, #(48 + 29 * 8)]
	mov	sp, x18
	ldr	x18, [sp, #(48 + 18 * 8 - 288 - 128)]
	eret
	.endm

	.globl	handle_el1h_sync
	.type	handle_el1h_sync, @function
handle_el1h_sync:
	SAVE_REGS
	msr	daifclr, #4
	mov	x0, xzr
	mov	x1, sp
	bl	do_el1h_sync
	RESTORE_REGS
	.size	handle_el1h_sync, . - handle_el1h_sync

	.globl	handle_el1h_irq
	.type	handle_el1h_irq, @function
handle_el1h_irq:
	SAVE_REGS
	mov	x0, sp
	bl	interrupt
	RESTORE_REGS
	.size	handle_el1h_irq, . - handle_el1h_irq

	.globl	handle_bad
	.type	handle_bad, @function
handle_bad:
	SAVE_REGS
	mov	x0, sp
	bl	bad_exception
1:	b	1b
	.size	handle_bad, . - handle_bad

	.macro	VECTOR handler
	.balign	128
	b	\handler
	.endm

	.balign	2048
	.globl	exception_vectors
exception_vectors:
	.rept	4
	VECTOR	handle_bad
	.endr
	VECTOR	handle_el1h_sync
	VECTOR	handle_el1h_irq
	.rept	10
	VECTOR	handle_bad
	.endr

	.globl	cpu_switch
	.type	cpu_switch, @function
cpu_switch:
	stp	x29, x30, [sp, #-96]!
	stp	x19, x20, [sp, #16]
	stp	x21, x22, [sp, #32]
	stp	x23, x24, [sp, #48]
	stp	x25, x26, [sp, #64]
	stp	x27, x28, [sp, #80]
	mov	x9, sp
	str	x9, [x0]
	ldr	x9, [x1]
	mov	sp, x9
	ldp	x19, x20, [sp, #16]
	ldp	x21, x22, [sp, #32]
	ldp	x23, x24, [sp, #48]
	ldp	x25, x26, [sp, #64]
	ldp	x27, x28, [sp, #80]
	ldp	x29, x30, [sp], #96
	ret
	.size	cpu_switch, . - cpu_switch

	.globl	spin_lock
	.type	spin_lock, @function
spin_lock:
	stp	x29, x30, [sp, #-16]!
	mov	w2, #1
1:	ldaxr	w1, [x0]
	cbnz	w1, 1b
	stxr	w3, w2, [x0]
	cbnz	w3, 1b
	add	x4, x0, #4
2:	ldxr	w1, [x4]
	add	w1, w1, #1
	stxr	w3, w1, [x4]
	cbnz	w3, 2b
	ldp	x29, x30, [sp], #16
	ret
	.size	spin_lock, . - spin_lock

	.globl	spin_unlock
	.type	spin_unlock, @function
spin_unlock:
	stp	x29, x30, [sp, #-16]!
	stlr	wzr, [x0]
	ldp	x29, x30, [sp], #16
	ret
	.size	spin_unlock, . - spin_unlock

	.bss
	.balign	16
	.skip	16384
	.globl	kernel_stack_top
kernel_stack_top:
