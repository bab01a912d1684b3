#include <stddef.h>
#include "h.h"
void *p_b; 
int fb(struct other *o) { p_b = midp(); return mid(o, 3 + sink) + inl(o, 2); }
