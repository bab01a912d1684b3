/* Hint that the CPU waits for another CPU.  SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#define spin_hint() __asm volatile("pause" ::: "memory")
