provider declares {
	probe go(int i, char *s);
	probe turned__round(int a, int b, char *c) : (char *c, int b, int a);
	probe many(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j);
	probe loaded(int i);
};
#pragma D attributes Evolving/Evolving/Common provider declares provider
#pragma D attributes Stable/Evolving/ISA provider declares args
