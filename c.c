#include <stddef.h>
#include "h.h"
void *p_c; 
int fc(struct other *o) { p_c = midp(); return mid(o, 3 + sink) + inl(o, 2); }
