#include <stddef.h>
#include "h.h"
void *p_a; 
int fa(struct other *o) { p_a = midp(); return mid(o, 3 + sink) + inl(o, 2); }
