/* Create a semaphore set; the argument is the number of semaphores. */
#include "system.h"

enum { SYS_semget = 221, PRIVATE = 0 };

int
main(int argc, char **argv, char **environment)
{
	long count = 0;

	(void)environment;
	for (const char *digit = argc > 1 ? argv[1] : ""; *digit >= '0' && *digit <= '9'; digit++)
		count = 10 * count + *digit - '0';
	if (CALL3(SYS_semget, PRIVATE, count, 0600) < 0) {
		print(2, "semaphores: cannot create a set of %ld semaphores\n", count);
		return (1);
	}
	print(1, "%ld semaphores\n", count);
	return (0);
}
