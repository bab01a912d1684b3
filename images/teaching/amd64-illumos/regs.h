/* amd64, illumos variant: struct regs and dtrace_invop's results.  SPDX-License-Identifier: BSD-2-Clause */
#define	REGS_SAVFP	0
#define	REGS_SAVPC	8
#define	REGS_RDI	16
#define	REGS_RSI	24
#define	REGS_RDX	32
#define	REGS_RCX	40
#define	REGS_R8		48
#define	REGS_R9		56
#define	REGS_RAX	64
#define	REGS_RBX	72
#define	REGS_RBP	80
#define	REGS_R10	88
#define	REGS_R11	96
#define	REGS_R12	104
#define	REGS_R13	112
#define	REGS_R14	120
#define	REGS_R15	128
#define	REGS_FSBASE	136
#define	REGS_GSBASE	144
#define	REGS_DS		152
#define	REGS_ES		160
#define	REGS_FS		168
#define	REGS_GS		176
#define	REGS_TRAPNO	184
#define	REGS_ERR	192
#define	REGS_RIP	200
#define	REGS_CS		208
#define	REGS_RFL	216
#define	REGS_RSP	224
#define	REGS_SS		232

#define	FRAME_RIP	0	/* offsets in the frame that the CPU pushes */
#define	FRAME_RSP	24

#define	NO_TRAPNO	0xdddd

#define	DTRACE_INVOP_PUSHL_EBP	1
#define	DTRACE_INVOP_LEAVE	3
#define	DTRACE_INVOP_NOP	4
#define	DTRACE_INVOP_RET	5
