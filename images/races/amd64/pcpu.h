/* Register that points to the per-CPU data.  SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#define set_pcpu(pcpu) __asm volatile("wrmsr" : : "c"(0xc0000101), "a"((u32)(u64)(pcpu)), \
	    "d"((u32)((u64)(pcpu) >> 32)))
