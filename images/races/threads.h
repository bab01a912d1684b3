/* Threads that share a CPU (threads.c).  SPDX-License-Identifier: BSD-2-Clause */
#pragma once

extern volatile u32 threads_made;

/* Another thread goes on, if one can. */
void thread_yield(void);
