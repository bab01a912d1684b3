/* Threads that share a CPU (threads.c).  SPDX-License-Identifier: BSD-2-Clause */
#pragma once

extern volatile u32 threads_made;

/* Let another thread of this CPU run, if one can. */
void thread_yield(void);
