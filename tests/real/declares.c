/* A program with probes of its own, which counts how often it passes them. */
#include <sys/wait.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "declares.h"

static int fired, asked, told;

static void __attribute__((noinline)) work(int i)
{
	if (DECLARES_GO_ENABLED()) {
		asked++;
		DECLARES_GO(i, (char *)"work");
	}
	fired++;
	DECLARES_TURNED_ROUND(i, i + 100, (char *)"three");
}

void __attribute__((noinline)) last(int i)
{
	told++;
	DECLARES_GO(i, (char *)"last");
}

int main(int argc, char **argv)
{
	void (*pass)(int);
	void *library;
	int loads = argc > 1 ? atoi(argv[1]) : 0;

	for (int i = 0; i < 7; i++)
		work(i);
	last(8);
	DECLARES_MANY(1, 2, 3, 4, 5, 6, 7, 8, -9, 10);
	if (fork() == 0) {
		work(20);
		_exit(0);
	}
	wait(NULL);
	for (int i = 0; i < loads; i++) {
		library = dlopen("/files/libdeclares.so", RTLD_NOW);
		if (library == NULL) {
			puts(dlerror());
			return 1;
		}
		pass = (void (*)(int))dlsym(library, "pass");
		pass(i);
		dlclose(library);
	}
	printf("fired %d, asked %d, told %d\n", fired, asked, told);
	return 0;
}
