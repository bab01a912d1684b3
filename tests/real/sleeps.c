/* A process that reads from a pipe into which its child writes later. */
#include "system.h"

enum { EXIT = 1, FORK = 2, READ = 3, WRITE = 4, WAIT4 = 7, NANOSLEEP = 240, PIPE2 = 542 };

int
main(void)
{
	struct { long seconds, nanoseconds; } soon = { 0, 50000000 };
	int ends[2];
	char byte = 0;

	system_call(PIPE2, (long)ends, 0, 0, 0, 0, 0);
	if (system_call(FORK, 0, 0, 0, 0, 0, 0) == 0) {
		system_call(NANOSLEEP, (long)&soon, 0, 0, 0, 0, 0);
		system_call(WRITE, ends[1], (long)"x", 1, 0, 0, 0);
		system_call(EXIT, 0, 0, 0, 0, 0, 0);
	}
	system_call(READ, ends[0], (long)&byte, 1, 0, 0, 0);
	system_call(WAIT4, -1, 0, 0, 0, 0, 0);
	return byte != 'x';
}
