/*
 * FreeBSD's system calls for programs without a C library. Numbers and layouts are those of
 * sys/syscall.h and related headers. A system call returns the kernel's result, or the negative
 * error number.
 */
#ifndef SYSTEM_H
#define SYSTEM_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "call.h"

/* The ELF note that marks a program for FreeBSD (sys/elf_common.h) */
__attribute__((used, section(".note.tag"), aligned(4))) static const struct {
	uint32_t name_size, size, type;
	char name[8];
	uint32_t version;
} abi_tag = { 8, 4, 1, "FreeBSD", 1500000 };

#define CALL(number, a, b, c, d, e, f) system_call(number, (long)(a), (long)(b), (long)(c), \
	(long)(d), (long)(e), (long)(f))
#define CALL0(number) CALL(number, 0, 0, 0, 0, 0, 0)
#define CALL1(number, a) CALL(number, a, 0, 0, 0, 0, 0)
#define CALL2(number, a, b) CALL(number, a, b, 0, 0, 0, 0)
#define CALL3(number, a, b, c) CALL(number, a, b, c, 0, 0, 0)
#define CALL4(number, a, b, c, d) CALL(number, a, b, c, d, 0, 0)

enum {
	SYS_exit = 1, SYS_fork = 2, SYS_read = 3, SYS_write = 4, SYS_open = 5, SYS_close = 6,
	SYS_wait4 = 7, SYS_unlink = 10, SYS_chdir = 12, SYS_getpid = 20, SYS_accept = 30,
	SYS_sync = 36, SYS_kill = 37, SYS_getppid = 39, SYS_ioctl = 54, SYS_reboot = 55, SYS_execve = 59,
	SYS_munmap = 73, SYS_mprotect = 74, SYS_setitimer = 83, SYS_dup2 = 90, SYS_socket = 97,
	SYS_connect = 98, SYS_bind = 104, SYS_listen = 106, SYS_rename = 128, SYS_mkdir = 136,
	SYS_rmdir = 137, SYS_setsid = 147, SYS_sysctl = 202, SYS_clock_gettime = 232,
	SYS_nanosleep = 240, SYS_sched_yield = 331, SYS_sigprocmask = 340, SYS_sigsuspend = 341,
	SYS_nmount = 378, SYS_sigaction = 416, SYS_thr_exit = 431, SYS_umtx_op = 454,
	SYS_thr_new = 455,
	SYS_mmap = 477, SYS_lseek = 478, SYS_ftruncate = 480, SYS_pipe2 = 542,
	SYS_fstat = 551, SYS_fstatat = 552, SYS_getdirentries = 554
};

enum { O_RDONLY = 0, O_WRONLY = 1, O_RDWR = 2, O_APPEND = 8, O_CREAT = 0x200, O_TRUNC = 0x400 };
enum { AT_FDCWD = -100, AT_SYMLINK_NOFOLLOW = 0x200 };
enum { PROT_READ = 1, PROT_WRITE = 2, PROT_EXEC = 4 };
enum { MAP_SHARED = 1, MAP_PRIVATE = 2, MAP_FIXED = 0x10, MAP_ANON = 0x1000 };
enum {
	SIGINT = 2, SIGILL = 4, SIGTRAP = 5, SIGFPE = 8, SIGKILL = 9, SIGBUS = 10, SIGSEGV = 11,
	SIGALRM = 14, SIGTERM = 15, SIGCHLD = 20, SIGUSR1 = 30
};
enum { SA_SIGINFO = 0x40 };
enum { SIG_BLOCK = 1, SIG_UNBLOCK = 2 };
enum { ENOENT = 2, EFAULT = 14, ENOTDIR = 20 };
enum { AF_INET = 2, SOCK_STREAM = 1, SOCK_DGRAM = 2 };
enum { SIOCAIFADDR = 0x8044692b }; /* netinet/in_var.h; the argument has 68 bytes */
enum { UMTX_WAIT_UINT = 15, UMTX_WAKE = 16 }; /* _umtx_op(2) between threads of one process */
enum { RB_POWEROFF = 0x4000 };
enum { MNT_UPDATE = 0x10000 };
enum { WNOHANG = 1 };

struct timespec { int64_t tv_sec; long tv_nsec; };
struct itimerval { int64_t interval_sec, interval_usec, value_sec, value_usec; };
struct signals { uint32_t bits[4]; };
struct siginfo { int number, error, code, pid; uint32_t uid; int status; void *address; long more[8]; };
struct sigaction {
	void (*handler)(int, struct siginfo *, void *);
	int flags;
	struct signals mask;
};
struct dirent {
	uint64_t fileno;
	int64_t offset;
	uint16_t reclen;
	uint8_t type, pad;
	uint16_t namlen, pad1;
	char name[256];
};
struct stat {
	uint64_t dev, ino, nlink;
	uint16_t mode, pad;
	uint32_t uid, gid, pad1;
	uint64_t rdev;
	struct timespec atime, mtime, ctime, birthtime;
	int64_t size, blocks;
	uint64_t more[14];
};
struct iovec { const void *base; size_t length; };
struct sockaddr_in { uint8_t len, family; uint16_t port; uint32_t address; char zero[8]; };
struct interface_address {
	char name[16];
	struct sockaddr_in address, other, mask;
	int group;
};
struct thr_param {
	void (*start)(void *);
	void *argument;
	char *stack;
	size_t stack_size;
	char *tls;
	size_t tls_size;
	long *child_tid, *parent_tid;
	int flags;
	void *realtime;
	void *spare[3];
};

static inline size_t
strlen(const char *s)
{
	size_t n = 0;

	while (s[n] != '\0')
		n++;
	return (n);
}

static inline int
strcmp(const char *a, const char *b)
{
	while (*a != '\0' && *a == *b)
		a++, b++;
	return ((unsigned char)*a - (unsigned char)*b);
}

/* The compiler itself generates calls to memset() and memcpy(). */
__attribute__((used)) static void *
memset(void *to, int byte, size_t size)
{
	volatile unsigned char *p = to;

	while (size-- > 0)
		*p++ = (unsigned char)byte;
	return (to);
}

__attribute__((used)) static void *
memcpy(void *to, const void *from, size_t size)
{
	volatile unsigned char *p = to;
	const unsigned char *q = from;

	while (size-- > 0)
		*p++ = *q++;
	return (to);
}

static inline int
memcmp(const void *a, const void *b, size_t size)
{
	const unsigned char *p = a, *q = b;

	for (; size > 0; size--, p++, q++)
		if (*p != *q)
			return (*p - *q);
	return (0);
}

/* Write formatted text like printf(3), in pieces of up to 512 bytes: %s, %c, %d, %i, %u, %o, %x, %X, %p
 * and %%, of char, short, int and long (hh, h, l, ll, z, j, t), with -, 0, a width and a precision.
 * Return the number of characters. Stop with an error message at any other conversion. */
__attribute__((unused)) static long
vprint(int file, const char *format, va_list list)
{
	char line[512], digits[24];
	size_t at = 0, whole = 0;

	for (; *format != '\0'; format++) {
		const char *text = digits, *sign = "";
		size_t length = 1, width = 0, padded, zeros = 0;
		int wide = 0, shorter = 0, left = 0, zero = 0, precision = -1;

		digits[0] = *format;
		if (*format == '%') {
			char kind;

			for (format++; *format == '-' || *format == '0'; format++)
				*(*format == '-' ? &left : &zero) = 1;
			for (int part = 0; part < 2; part++) { /* width, precision */
				int given = part == 0 ? 0 : -1;

				if (part == 1 && *format == '.')
					given = 0, format++;
				else if (part == 1)
					break;
				if (*format == '*')
					given = va_arg(list, int), format++;
				for (; *format >= '0' && *format <= '9'; format++)
					given = given * 10 + (*format - '0');
				if (part == 1)
					precision = given;
				else if (given < 0)
					left = 1, width = (size_t)-(long)given;
				else
					width = (size_t)given;
			}
			for (; *format == 'l' || *format == 'z' || *format == 'j' || *format == 't' ||
			    *format == 'h'; format++)
				*(*format == 'h' ? &shorter : &wide) += 1;
			kind = *format;
			if (kind == 's') {
				text = va_arg(list, const char *);
				if (text == NULL)
					text = "(null)";
				for (length = 0; (precision < 0 || length < (size_t)precision) &&
				    text[length] != '\0';)
					length++;
			} else if (kind == 'c')
				digits[0] = (char)va_arg(list, int);
			else if (kind == 'd' || kind == 'i' || kind == 'u' || kind == 'o' || kind == 'x' ||
			    kind == 'X' || kind == 'p') {
				unsigned long base = kind == 'd' || kind == 'i' || kind == 'u' ? 10 :
				    kind == 'o' ? 8 : 16, value;
				int with_sign = kind == 'd' || kind == 'i';
				long given = wide || kind == 'p' ? va_arg(list, long) :
				    with_sign ? va_arg(list, int) : (long)va_arg(list, unsigned);
				char *end = digits + sizeof(digits), *p = end;

				if (shorter == 1)
					given = with_sign ? (short)given : (unsigned short)given;
				else if (shorter > 1)
					given = with_sign ? (signed char)given : (unsigned char)given;
				value = with_sign && given < 0 ? -(unsigned long)given :
				    (unsigned long)given;
				for (; value != 0; value /= base)
					*--p = (kind == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[
					    value % base];
				sign = with_sign && given < 0 ? "-" : kind == 'p' ? "0x" : "";
				text = p;
				length = (size_t)(end - p);
				if (precision >= 0)
					zero = 0;
				else if (length == 0)
					precision = 1;
				if (precision > 0 && (size_t)precision > length)
					zeros = (size_t)precision - length;
			} else if (kind == '%')
				digits[0] = '%';
			else {
				static const char said[] = "printf: this conversion is not supported\n";

				CALL3(SYS_write, 2, said, sizeof(said) - 1);
				break;
			}
		}
		padded = length + zeros + strlen(sign);
		padded = padded < width ? width - padded : 0;
		for (int step = 0; step < 5; step++) {
			/* Steps: spaces, the sign, zeros, the text, spaces. */
			size_t n = (step == 1 ? strlen(sign) : step == 3 ? length : step == 2 ? zeros : 0) +
			    (step == (left ? 4 : zero ? 2 : 0) ? padded : 0);
			const char *from = step == 1 ? sign : step == 3 ? text : NULL;

			whole += n;
			while (n-- > 0) {
				line[at++] = from != NULL ? *from++ : step == 2 ? '0' : ' ';
				if (at == sizeof(line)) {
					CALL3(SYS_write, file, line, at);
					at = 0;
				}
			}
		}
	}
	if (at > 0)
		CALL3(SYS_write, file, line, at);
	return ((long)whole);
}

__attribute__((format(printf, 2, 3), unused)) static void
print(int file, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vprint(file, format, list);
	va_end(list);
}

/* An alias of main() without a fixed number of parameters, so that a program can declare fewer. */
int program_main(int argc, char **argv, char **environment) __asm__("main");

/* The kernel puts argc, argv and the environment on the stack. */
__attribute__((used)) void
_start(long *given)
{
	int argc = (int)given[0];
	char **argv = (char **)(given + 1);

	CALL1(SYS_exit, program_main(argc, argv, argv + argc + 1));
	__builtin_unreachable();
}

#endif
