/* Hint that the CPU waits for another CPU: PAUSE.  SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#define spin_hint() __asm volatile(".4byte 0x0100000f" ::: "memory")
