/* System calls that fail: the argument chooses one; the exit status is its error number. */
#include "system.h"

static long
sc(long n, long a, long b, long c, long d, long e, long f)
{
	return system_call(n, a, b, c, d, e, f);
}

static int
number(const char *text)
{
	int value = 0;

	while (*text)
		value = value * 10 + *text++ - '0';
	return value;
}

int
main(int argc, char **argv)
{
	static char longname[400], buf[200];
	int p[2];
	long fd;
	struct { long seconds, nanoseconds; } ts = { 0, 2000000000 };
	int n = number(argv[1]);
	static char *av[] = { "x", 0 };
	fd = sc(5, (long)"/etc/motd", 0, 0, 0, 0, 0);
	switch (n) {
	case 1:
		return -sc(5, (long)"/nofile", 0, 0, 0, 0, 0);
	case 2:
		sc(552, -100, (long)"/etc", (long)buf, 0, 0, 0);
		return -sc(136, (long)"/etc", 0755, 0, 0, 0, 0);
	case 3:
		return -sc(137, (long)"/etc", 0, 0, 0, 0, 0);
	case 4:
		fd=sc(5, (long)"/etc", 0, 0, 0, 0, 0);
		return -sc(3, fd, (long)buf, 100, 0, 0, 0);
	case 5:
		return -sc(6, 99, 0, 0, 0, 0, 0);
	case 6:
		sc(542, (long)p, 0, 0, 0, 0, 0);
		return -sc(478, p[0], 0, 0, 0, 0, 0);
	case 7:
		return -sc(5, (long)"/etc/motd/x", 0, 0, 0, 0, 0);
	case 8:
		return -sc(4, fd, (long)"x", 1, 0, 0, 0);
	case 9:
		return -sc(37, 99999, 0, 0, 0, 0, 0);
	case 10:
		return -sc(90, 0, -1, 0, 0, 0, 0);
	case 11:
		return -sc(477, 0, 0, 1, 0x1002, -1, 0);
	case 12:
		return -sc(54, fd, 0x20001234, 0, 0, 0, 0);
	case 13:
		return -sc(7, -1, 0, 0, 0, 0, 0);
	case 14:
		return -sc(97, 999, 1, 0, 0, 0, 0);
	case 15:
		return -sc(12, (long)"/etc/motd", 0, 0, 0, 0, 0);
	case 16:
		return -sc(58, (long)"/etc/motd", (long)buf, 10, 0, 0, 0);
	case 17:
		return -sc(479, (long)"/etc/motd", -1, 0, 0, 0, 0);
	case 18:
		return -sc(240, (long)&ts, 0, 0, 0, 0, 0);
	case 19:
		longname[0]='/';
		for(int i=1;i<300;i++) longname[i]='a';
		return -sc(5, (long)longname, 0, 0, 0, 0, 0);
	case 20:
		return -sc(9, (long)"/etc", (long)"/tmp/x", 0, 0, 0, 0);
	case 21:
		return -sc(59, (long)"/etc/motd", (long)av, (long)av, 0, 0, 0);
	case 22:
		return -sc(92, 0, 9999, 0, 0, 0, 0);
	case 23:
		return -sc(195, 999, (long)buf, 0, 0, 0, 0);
	case 24:
		return -sc(10, (long)"/etc", 0, 0, 0, 0, 0);
	}
	return 0;
}
