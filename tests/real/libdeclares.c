/* A shared object with a probe of the same provider. */
#include "declares.h"

void pass(int i)
{
	DECLARES_LOADED(i);
	__asm__ volatile("");
}
