#include "h.h"
int fa(struct other*),fb(struct other*),fc(struct other*);
volatile int sink; int tab[64]; int main(void){struct other o={0,0}; return fa(&o)+fb(&o)+fc(&o);}
