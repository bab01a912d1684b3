/*
 * riscv64: entry, the trap vector, the thread switch.  SPDX-License-Identifier: BSD-2-Clause
 *
 * Entered in S-mode at the first byte, like FreeBSD's kernel; paging stays off.
 */
	.text
	.globl	_start
	.type	_start, @function
_start:
	.option	push
	.option	norelax
	lla	gp, __global_pointer$
	.option	pop
	lla	sp, kernel_stack_top
	csrw	sie, zero
	csrw	sscratch, zero
	lla	t0, cpu_exception_handler
	csrw	stvec, t0
	lla	t0, bss_begin
	lla	t1, bss_end
1:	bgeu	t0, t1, 2f
	sd	zero, (t0)
	addi	t0, t0, 8
	j	1b
2:	mv	s0, zero
	mv	tp, zero
	call	kernel_main
3:	wfi
	j	3b
	.size	_start, . - _start

	.balign	4
	.globl	cpu_exception_handler
	.type	cpu_exception_handler, @function
cpu_exception_handler:
	csrrw	tp, sscratch, tp
	beqz	tp, 1f
1:	csrrw	tp, sscratch, tp
	.globl	cpu_exception_handler_supervisor
	.type	cpu_exception_handler_supervisor, @function
cpu_exception_handler_supervisor:
	addi	sp, sp, -288
	sd	ra, 0(sp)
	sd	gp, 16(sp)
	sd	tp, 24(sp)
	sd	t0, 32(sp)
	sd	t1, 40(sp)
	sd	t2, 48(sp)
	sd	t3, 56(sp)
	sd	t4, 64(sp)
	sd	t5, 72(sp)
	sd	t6, 80(sp)
	sd	s0, 88(sp)
	sd	s1, 96(sp)
	sd	s2, 104(sp)
	sd	s3, 112(sp)
	sd	s4, 120(sp)
	sd	s5, 128(sp)
	sd	s6, 136(sp)
	sd	s7, 144(sp)
	sd	s8, 152(sp)
	sd	s9, 160(sp)
	sd	s10, 168(sp)
	sd	s11, 176(sp)
	sd	a0, 184(sp)
	sd	a1, 192(sp)
	sd	a2, 200(sp)
	sd	a3, 208(sp)
	sd	a4, 216(sp)
	sd	a5, 224(sp)
	sd	a6, 232(sp)
	sd	a7, 240(sp)
	addi	t1, sp, 288
	sd	t1, 8(sp)
	csrr	t0, sepc
	sd	t0, 248(sp)
	csrr	t0, sstatus
	sd	t0, 256(sp)
	csrr	t0, stval
	sd	t0, 264(sp)
	csrr	t0, scause
	sd	t0, 272(sp)
	mv	a0, sp
	call	do_trap_supervisor
	li	t0, 2
	csrc	sstatus, t0
	ld	t0, 256(sp)
	andi	t0, t0, ~2
	csrw	sstatus, t0
	ld	t0, 248(sp)
	csrw	sepc, t0
	ld	ra, 0(sp)
	ld	t0, 32(sp)
	ld	t1, 40(sp)
	ld	t2, 48(sp)
	ld	t3, 56(sp)
	ld	t4, 64(sp)
	ld	t5, 72(sp)
	ld	t6, 80(sp)
	ld	s0, 88(sp)
	ld	s1, 96(sp)
	ld	s2, 104(sp)
	ld	s3, 112(sp)
	ld	s4, 120(sp)
	ld	s5, 128(sp)
	ld	s6, 136(sp)
	ld	s7, 144(sp)
	ld	s8, 152(sp)
	ld	s9, 160(sp)
	ld	s10, 168(sp)
	ld	s11, 176(sp)
	ld	a0, 184(sp)
	ld	a1, 192(sp)
	ld	a2, 200(sp)
	ld	a3, 208(sp)
	ld	a4, 216(sp)
	ld	a5, 224(sp)
	ld	a6, 232(sp)
	ld	a7, 240(sp)
	addi	sp, sp, 288
	sret
	.size	cpu_exception_handler_supervisor, . - cpu_exception_handler_supervisor

	.globl	cpu_switch
	.type	cpu_switch, @function
cpu_switch:
	addi	sp, sp, -112
	sd	ra, 0(sp)
	sd	s0, 8(sp)
	sd	s1, 16(sp)
	sd	s2, 24(sp)
	sd	s3, 32(sp)
	sd	s4, 40(sp)
	sd	s5, 48(sp)
	sd	s6, 56(sp)
	sd	s7, 64(sp)
	sd	s8, 72(sp)
	sd	s9, 80(sp)
	sd	s10, 88(sp)
	sd	s11, 96(sp)
	sd	sp, (a0)
	ld	sp, (a1)
	ld	ra, 0(sp)
	ld	s0, 8(sp)
	ld	s1, 16(sp)
	ld	s2, 24(sp)
	ld	s3, 32(sp)
	ld	s4, 40(sp)
	ld	s5, 48(sp)
	ld	s6, 56(sp)
	ld	s7, 64(sp)
	ld	s8, 72(sp)
	ld	s9, 80(sp)
	ld	s10, 88(sp)
	ld	s11, 96(sp)
	addi	sp, sp, 112
	ret
	.size	cpu_switch, . - cpu_switch

	.globl	spin_lock
	.type	spin_lock, @function
spin_lock:
	addi	sp, sp, -16
	sd	ra, 8(sp)
	li	a2, 1
1:	lr.w.aq	a1, (a0)
	bnez	a1, 1b
	sc.w	a3, a2, (a0)
	bnez	a3, 1b
	addi	a4, a0, 4
	amoadd.w zero, a2, (a4)
	ld	ra, 8(sp)
	addi	sp, sp, 16
	ret
	.size	spin_lock, . - spin_lock

	.globl	spin_unlock
	.type	spin_unlock, @function
spin_unlock:
	addi	sp, sp, -16
	sd	ra, 8(sp)
	amoswap.w.rl zero, zero, (a0)
	ld	ra, 8(sp)
	addi	sp, sp, 16
	ret
	.size	spin_unlock, . - spin_unlock

	.bss
	.balign	16
	.skip	16384
	.globl	kernel_stack_top
kernel_stack_top:
