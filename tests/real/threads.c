// Three threads that sort, format text, and send themselves signals.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile long sum;

static int
compare(const void *one, const void *other)
{
	int a = *(const int *)one, b = *(const int *)other;

	return a < b ? -1 : a > b;
}

static int
sorted(int seed)
{
	int values[64];

	for (int n = 0; n < 64; n++)
		values[n] = (n * 7919 + seed) % 101;
	qsort(values, 64, sizeof(values[0]), compare);
	return values[seed % 64];
}

static void
handler(int signal)
{
	sum += sorted(signal);
}

static void *
work(void *number)
{
	char text[40];

	for (int n = 0; n < 10; n++) {
		sum += sorted(n + (int)(long)number);
		snprintf(text, sizeof(text), "%d %s", n, "x");
		sum += strlen(text);
		if (n % 3 == 0)
			raise(SIGUSR1);
	}
	return NULL;
}

int
main(void)
{
	pthread_t threads[3];

	signal(SIGUSR1, handler);
	for (long n = 0; n < 3; n++)
		pthread_create(&threads[n], NULL, work, (void *)n);
	for (int n = 0; n < 3; n++)
		pthread_join(threads[n], NULL);
	printf("%ld\n", sum);
	return 0;
}
