/*
 * Threads that share a CPU; the timer interrupt preempts a thread that has td_owepreempt set.
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Functions and members have the names of their counterparts in FreeBSD's kernel, so that a tool
 * that creates threads there can create them here, too.
 */
#include "../teaching/kernel.h"
#include "pcpu.h"
#include "threads.h"

#define	MAX_THREADS	4
#define	ENOMEM		12

enum { TDS_INACTIVE, TDS_INHIBITED, TDS_CAN_RUN, TDS_RUNQ, TDS_RUNNING };

struct thread {
	u64 td_context;		/* for cpu_switch(); must be the first member */
	struct thread *td_next;	/* next in the run queue */
	void (*td_function)(void *);
	void *td_argument;
	const char *td_name;
	int td_tid;
	int td_flags;
	u32 td_critnest;
	int td_pinned;
	int td_state;
	u8 td_owepreempt;
};

struct td_sched {
	int ts_cpu;
	int ts_flags;
};

struct pcpu {
	struct thread *pc_curthread;
};

static struct {
	struct thread thread;
	struct td_sched scheduler;
} slots[MAX_THREADS];
static u8 stacks[MAX_THREADS][8192] __attribute__((aligned(16)));
volatile u32 threads_made;
static struct thread thread0 = { .td_state = TDS_RUNNING };
static struct pcpu pcpu0 = { &thread0 };
static struct thread *queue_first, *queue_last;

/* Memory allocator without free(). */
u8 M_TEMP[1];

void *
malloc(size_t size, void *type, int flags)
{
	static u8 pool[65536] __attribute__((aligned(16)));
	static size_t used;
	u8 *found = pool + used;

	(void)type, (void)flags;
	size = (size + 15) & ~15ul;
	if (size > sizeof(pool) - used)
		return 0;
	used += size;
	return found;
}

void
threads_init(void)
{
	set_pcpu(&pcpu0);
}

/* Called with interrupts disabled, like mi_switch(). */
static void
runq_add(struct thread *td)
{
	td->td_state = TDS_RUNQ;
	td->td_next = 0;
	if (queue_first == 0)
		queue_first = td;
	else
		queue_last->td_next = td;
	queue_last = td;
}

static void
mi_switch(int stays)
{
	struct thread *old = pcpu0.pc_curthread, *next;

	old->td_owepreempt = 0;
	old->td_flags = 0;
	if (stays && old != &thread0)
		runq_add(old);
	next = queue_first;
	if (next != 0)
		queue_first = next->td_next;
	else
		next = &thread0;
	next->td_state = TDS_RUNNING;
	if (next == old)
		return;
	pcpu0.pc_curthread = next;
	cpu_switch(&old->td_context, &next->td_context);
}

/* Called at the end of the clock interrupt. */
void
clock_preempt(void)
{
	struct thread *td = pcpu0.pc_curthread;

	if (td == &thread0 ? queue_first != 0 : td->td_owepreempt && td->td_critnest == 0)
		mi_switch(1);
}

void
thread_yield(void)
{
	u64 state = machine_interrupts_off();

	mi_switch(1);
	machine_interrupts_restore(state);
}

void
kthread_exit(void)
{
	machine_interrupts_off();
	pcpu0.pc_curthread->td_state = TDS_INACTIVE;
	mi_switch(0);
}

static void
fork_exit(void)
{
	struct thread *td = pcpu0.pc_curthread;

	machine_interrupts_restore(1);
	td->td_function(td->td_argument);
	kthread_exit();
}

/* Create a thread that does not run until sched_add(). */
int
kthread_add(void (*function)(void *), void *argument, void *process, struct thread **made, int flags,
    int pages, const char *name)
{
	struct thread *td;

	(void)process, (void)flags, (void)pages;
	if (threads_made == MAX_THREADS)
		return ENOMEM;
	td = &slots[threads_made].thread;
	td->td_function = function;
	td->td_argument = argument;
	td->td_name = name;
	td->td_tid = 1 + (int)threads_made;
	machine_thread(&td->td_context, fork_exit, (u64)(stacks[threads_made] + sizeof(stacks[0])));
	threads_made++;
	*made = td;
	return 0;
}

void
sched_add(struct thread *td, int flags)
{
	u64 state = machine_interrupts_off();

	(void)flags;
	runq_add(td);
	machine_interrupts_restore(state);
}
