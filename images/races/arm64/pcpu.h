/* Register that points to the per-CPU data.  SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#define set_pcpu(pcpu) __asm volatile("mov x18, %0" : : "r"(pcpu))
