/* The register that leads to what is the CPU's own.  SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#define set_pcpu(pcpu) __asm volatile("mov x18, %0" : : "r"(pcpu))
