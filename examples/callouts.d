#!/usr/bin/env -S kdtrace -s
/*
 * Expired kernel timers (callouts): the functions that they call, and how long these take.
 *
 *	callouts.d -k KERNEL -c '$ sleep 2'
 */
#pragma D option quiet

callout_execute:::callout-start
{
	self->began = timestamp;
}

callout_execute:::callout-end
/self->began/
{
	@calls[func((uintptr_t)((struct callout *)arg0)->c_func)] = count();
	@time[func((uintptr_t)((struct callout *)arg0)->c_func)] = avg(timestamp - self->began);
	self->began = 0;
}

END
{
	printf("%-40s %8s %10s\n", "FUNCTION", "CALLS", "AVERAGE ns");
	printa("%-40a %@8d %@10d\n", @calls, @time);
}
