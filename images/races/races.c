/*
 * Thirteen concurrency defects, each with its correction.  SPDX-License-Identifier: BSD-2-Clause
 *
 * To test a defect, call x_reset(), then x_bad() or x_good() on several CPUs or threads at once
 * (some defects use two different functions). Then x_check() returns 1 if the result is correct.
 */
#include "../teaching/kernel.h"
#include "spin.h"
#include "threads.h"

#define noinline __attribute__((noinline))

/* Keep a value in a register, so that the compiler cannot update memory with one instruction. */
#define IN_REGISTER(value) __asm volatile("" : "+r"(value))

struct lock {
	u32 held;
};

/* Let another CPU, or another thread of this CPU, continue. */
#define wait_a_little() do { spin_hint(); if (threads_made) thread_yield(); } while (0)

static noinline void
lock_acquire(struct lock *lock)
{
	while (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE) != 0)
		wait_a_little();
}

static noinline void
lock_release(struct lock *lock)
{
	__atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
}

/* 1. Lost update: a counter is read, incremented and written without a lock. */
volatile u64 counter;
static struct lock counter_lock;

void counter_reset(void) { counter = 0; }

void
counter_bad(void)
{
	u64 value = counter;

	IN_REGISTER(value);
	counter = value + 1;
}

void
counter_good(void)
{
	lock_acquire(&counter_lock);
	counter = counter + 1;
	lock_release(&counter_lock);
}

int counter_check(void) { return counter == 2; }

/* 2. Wrong publication order: the flag is set before the message that it announces. */
static volatile u64 message, message_ready;

void message_reset(void) { message = message_ready = 0; }

void
message_send_bad(void)
{
	message_ready = 1;
	message = 42;
}

void
message_send_good(void)
{
	message = 42;
	__atomic_store_n(&message_ready, 1, __ATOMIC_SEQ_CST);
}

u64
message_take_bad(void)
{
	return message_ready ? message : 42;
}

u64
message_take_good(void)
{
	return __atomic_exchange_n(&message_ready, 0, __ATOMIC_SEQ_CST) ? message : 42;
}

/* 3. Double free: a pointer is tested and cleared without a lock, so two callers free the node. */
struct node {
	struct node *next;
	u64 value;
};
static struct node nodes[4];
static struct node *volatile free_nodes;
static struct node *volatile shared_node;
static volatile u64 frees;
static struct lock node_lock;

void
node_reset(void)
{
	free_nodes = 0;
	frees = 0;
	shared_node = &nodes[0];
}

static noinline void
node_free(struct node *node)
{
	for (struct node *one = free_nodes; one != 0; one = one->next)
		if (one == node)
			panic("node_free: freed twice");
	node->next = free_nodes;
	free_nodes = node;
}

void
node_drop_bad(void)
{
	struct node *node = shared_node;

	if (node != 0) {
		shared_node = 0;
		lock_acquire(&node_lock);
		node_free(node);
		lock_release(&node_lock);
	}
}

void
node_drop_good(void)
{
	struct node *node;

	lock_acquire(&node_lock);
	node = shared_node;
	shared_node = 0;
	if (node != 0)
		node_free(node);
	lock_release(&node_lock);
}

/* 4. Lock order reversal: two functions take the same locks in opposite orders. */
static struct lock lock_one, lock_other;
static volatile u64 moved;

void
move_reset(void)
{
	lock_one.held = lock_other.held = 0;
	moved = 0;
}

static noinline void
move_with(struct lock *first, struct lock *second)
{
	lock_acquire(first);
	lock_acquire(second);
	moved = moved + 1;
	lock_release(second);
	lock_release(first);
}

void move_there(void) { move_with(&lock_one, &lock_other); }
void move_back_bad(void) { move_with(&lock_other, &lock_one); }
void move_back_good(void) { move_with(&lock_one, &lock_other); }

/* 5. Missed wake-up: the wake-up comes between the test and the sleep, when nobody sleeps yet. */
static volatile u32 work_there, sleeping, woken;
static struct lock work_mutex;

void work_reset(void) { work_there = sleeping = woken = 0; }

u64
work_wait_bad(void)
{
	if (!__atomic_load_n(&work_there, __ATOMIC_SEQ_CST)) {
		__atomic_store_n(&sleeping, 1, __ATOMIC_SEQ_CST);
		while (!__atomic_load_n(&woken, __ATOMIC_SEQ_CST))
			wait_a_little();
	}
	return __atomic_load_n(&work_there, __ATOMIC_SEQ_CST);
}

void
work_give_bad(void)
{
	__atomic_store_n(&work_there, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&sleeping, __ATOMIC_SEQ_CST))
		__atomic_store_n(&woken, 1, __ATOMIC_SEQ_CST);
}

u64
work_wait_good(void)
{
	int sleeps;

	lock_acquire(&work_mutex);
	sleeps = !work_there;
	if (sleeps)
		sleeping = 1;
	lock_release(&work_mutex);
	while (sleeps && !__atomic_load_n(&woken, __ATOMIC_SEQ_CST))
		wait_a_little();
	return 1;
}

void
work_give_good(void)
{
	lock_acquire(&work_mutex);
	work_there = 1;
	if (sleeping)
		__atomic_store_n(&woken, 1, __ATOMIC_SEQ_CST);
	lock_release(&work_mutex);
}

/* 6. ABA: the top of the stack is the same node again, but the node below it has changed. */
static struct node *volatile stack_top;
static struct node stack_nodes[3];
static struct lock stack_lock;

void
stack_reset(void)
{
	stack_nodes[0].next = &stack_nodes[1];
	stack_nodes[1].next = &stack_nodes[2];
	stack_nodes[2].next = 0;
	stack_top = &stack_nodes[0];
}

static struct node *
stack_pop_bad(void)
{
	struct node *top, *next;

	do {
		top = __atomic_load_n(&stack_top, __ATOMIC_SEQ_CST);
		if (top == 0)
			return 0;
		next = __atomic_load_n(&top->next, __ATOMIC_SEQ_CST);
	} while (!__atomic_compare_exchange_n(&stack_top, &top, next, 0, __ATOMIC_SEQ_CST,
	    __ATOMIC_SEQ_CST));
	return top;
}

static void
stack_push_bad(struct node *node)
{
	struct node *top;

	do {
		top = __atomic_load_n(&stack_top, __ATOMIC_SEQ_CST);
		__atomic_store_n(&node->next, top, __ATOMIC_SEQ_CST);
	} while (!__atomic_compare_exchange_n(&stack_top, &top, node, 0, __ATOMIC_SEQ_CST,
	    __ATOMIC_SEQ_CST));
}

void stack_take_bad(void) { (void)stack_pop_bad(); }

void
stack_shuffle_bad(void)
{
	struct node *first = stack_pop_bad();

	(void)stack_pop_bad();
	if (first != 0)
		stack_push_bad(first);
}

void
stack_take_good(void)
{
	lock_acquire(&stack_lock);
	if (stack_top != 0)
		stack_top = stack_top->next;
	lock_release(&stack_lock);
}

void
stack_shuffle_good(void)
{
	struct node *first;

	lock_acquire(&stack_lock);
	first = stack_top;
	if (first != 0 && first->next != 0) {
		first->next = first->next->next;
		stack_top = first;
	}
	lock_release(&stack_lock);
}

/* Return 1 if two of the three nodes were taken, in any order. */
int
stack_check(void)
{
	u64 left = 0;

	for (struct node *one = stack_top; one != 0 && left < 4; one = one->next)
		left++;
	return left == 1;
}

/* 7. Missing lock: an interrupt handler changes the queue without taking the queue's lock. */
static volatile u64 queue_length, queue_last;
static volatile u64 queue[4];
static struct lock queue_lock;

void queue_reset(void) { queue_length = queue_last = 0; }

static noinline void
queue_put(u64 value)
{
	u64 at = queue_length;

	queue[at & 3] = value;
	queue_length = at + 1;
}

void
queue_thread(void)
{
	lock_acquire(&queue_lock);
	queue_put(1);
	lock_release(&queue_lock);
}

void queue_handler_bad(void) { queue_put(2); }

void
queue_handler_good(void)
{
	lock_acquire(&queue_lock);
	queue_put(2);
	lock_release(&queue_lock);
}

int queue_check(void) { return queue_length == 2 && queue[0] + queue[1] == 3; }

/* 8. Reference count: a separate load and store decrement the count. */
static volatile u32 references;
static volatile u32 destroyed;

void
reference_reset(void)
{
	references = 2;
	destroyed = 0;
}

void
reference_drop_bad(void)
{
	u32 left = references - 1;

	IN_REGISTER(left);
	references = left;
	if (left == 0)
		destroyed = destroyed + 1;
}

void
reference_drop_good(void)
{
	if (__atomic_sub_fetch(&references, 1, __ATOMIC_SEQ_CST) == 0)
		__atomic_store_n(&destroyed, destroyed + 1, __ATOMIC_SEQ_CST);
}

int reference_check(void) { return references == 0 && destroyed == 1; }

/* 9. Check, then act: the seat can be taken between the check and the increment. */
static volatile u32 seats_taken;
static struct lock seat_lock;

void seat_reset(void) { seats_taken = 0; }

u64
seat_take_bad(void)
{
	if (__atomic_load_n(&seats_taken, __ATOMIC_SEQ_CST) >= 1)
		return 0;
	return __atomic_add_fetch(&seats_taken, 1, __ATOMIC_SEQ_CST);
}

u64
seat_take_good(void)
{
	u64 got = 0;

	lock_acquire(&seat_lock);
	if (seats_taken < 1)
		got = ++seats_taken;
	lock_release(&seat_lock);
	return got;
}

int seat_check(void) { return seats_taken == 1; }

/* 10. Torn read: two words that belong together are read between the writes to them. */
static volatile u64 pair_low, pair_high;
static struct lock pair_lock;

void pair_reset(void) { pair_low = pair_high = 0; }

void
pair_write_bad(void)
{
	pair_low = 1;
	pair_high = 1;
}

u64 pair_read_bad(void) { return pair_low ^ pair_high; }

void
pair_write_good(void)
{
	lock_acquire(&pair_lock);
	pair_low = 1;
	pair_high = 1;
	lock_release(&pair_lock);
}

u64
pair_read_good(void)
{
	u64 value;

	lock_acquire(&pair_lock);
	value = pair_low ^ pair_high;
	lock_release(&pair_lock);
	return value;
}

/* 11. Double initialization: two callers test the flag before either of them sets it. */
static volatile u32 made, makings;
static struct lock make_lock;

void make_reset(void) { made = makings = 0; }

void
make_once_bad(void)
{
	if (!made) {
		makings = makings + 1;
		made = 1;
	}
}

void
make_once_good(void)
{
	lock_acquire(&make_lock);
	if (!made) {
		makings = makings + 1;
		made = 1;
	}
	lock_release(&make_lock);
}

int make_check(void) { return made == 1 && makings == 1; }

/* 12. Lock released too early: the balance can change between the check and the withdrawal. */
static volatile u64 purse_one, purse_other;
static struct lock purse_lock;

void
purse_reset(void)
{
	purse_one = 10;
	purse_other = 0;
}

void
purse_move_bad(void)
{
	u64 have;

	lock_acquire(&purse_lock);
	have = purse_one;
	lock_release(&purse_lock);
	if (have >= 6) {
		lock_acquire(&purse_lock);
		purse_one = purse_one - 6;
		purse_other = purse_other + 6;
		lock_release(&purse_lock);
	}
}

void
purse_move_good(void)
{
	lock_acquire(&purse_lock);
	if (purse_one >= 6) {
		purse_one = purse_one - 6;
		purse_other = purse_other + 6;
	}
	lock_release(&purse_lock);
}

int purse_check(void) { return purse_one == 4 && purse_other == 6; }

/* 13. Missing interrupt mask: a thread and the clock interrupt change the same counter. */
static volatile u64 beats, beats_of_clock;
static volatile u32 beats_on;

void
beat_reset(void)
{
	beats = beats_of_clock = 0;
	beats_on = 1;
}

void
clock_beat(void)
{
	if (beats_on) {
		beats = beats + 1;
		beats_of_clock = beats_of_clock + 1;
	}
}

void
beat_add_bad(void)
{
	u64 value = beats;

	IN_REGISTER(value);
	beats = value + 1;
}

void beat_look_bad(void) { (void)beats; }

void
beat_add_good(void)
{
	u64 state = machine_interrupts_off();
	u64 value = beats;

	IN_REGISTER(value);
	beats = value + 1;
	machine_interrupts_restore(state);
}

void
beat_look_good(void)
{
	u64 state = machine_interrupts_off();

	(void)beats;
	machine_interrupts_restore(state);
}

int
beat_check(void)
{
	beats_on = 0;
	return beats == beats_of_clock + 1;
}

/* Lost updates by callers that run for a long time, or that execute spin hints without waiting. */
static volatile u64 slow_sum;

void slow_reset(void) { slow_sum = 0; }

void
slow_add(u64 times)
{
	u64 value = slow_sum;

	for (u64 i = 0; i < times; i++)
		IN_REGISTER(value);
	slow_sum = value + 1;
}

void
slow_wait(u64 times)
{
	u64 value = slow_sum;

	for (u64 i = 0; i < times; i++)
		spin_hint();
	slow_sum = value + 1;
}

int slow_check(void) { return slow_sum == 2; }

/* Two callers that should get the same node get different ones if they run at the same time. */
static struct node *volatile made_node;
static struct node node_store[2];
static u64 node_used;

void
same_reset(void)
{
	made_node = 0;
	node_used = 0;
}

struct node *
same_node_bad(void)
{
	struct node *mine = made_node;

	if (mine == 0) {
		mine = &node_store[__atomic_fetch_add(&node_used, 1, __ATOMIC_SEQ_CST) & 1];
		made_node = mine;
	}
	return mine;
}
