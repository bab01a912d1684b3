/*
 * A small C library for single-file programs; its functions are thin wrappers around the system
 * calls of system.h. Programs that do not include system.h get this header automatically. Headers
 * with standard names (unistd.h, fcntl.h, stdio.h, ...) include it, too.
 */
#ifndef LIBC_H
#define LIBC_H

#include <stdarg.h>
#include <stdbool.h>

#include "system.h"

#include "errors.h"

#define LIBC __attribute__((unused)) static

typedef long ssize_t, off_t, time_t, clockid_t;
typedef int pid_t;
typedef unsigned short mode_t;
typedef unsigned uid_t, gid_t;

enum {
	SYS_dup = 41, SYS_access = 33, SYS_getuid = 24, SYS_getgid = 47, SYS_fsync = 95,
	SYS_symlink = 57, SYS_link = 9, SYS_chmod = 15, SYS_umask = 60
};
enum { O_NONBLOCK = 4, O_EXCL = 0x800, O_DIRECTORY = 0x20000, O_CLOEXEC = 0x100000 };
enum { SEEK_SET, SEEK_CUR, SEEK_END };
enum { STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO };
enum { EXIT_SUCCESS, EXIT_FAILURE };
enum { F_OK = 0, X_OK = 1, W_OK = 2, R_OK = 4 };
enum { CLOCK_REALTIME = 0, CLOCK_MONOTONIC = 4 };
enum {
	EPERM = 1, ESRCH = 3, EINTR = 4, EIO = 5, ENXIO = 6, E2BIG = 7, ENOEXEC = 8, EBADF = 9,
	ECHILD = 10, EDEADLK = 11, ENOMEM = 12, EACCES = 13, EBUSY = 16, EEXIST = 17, EXDEV = 18,
	ENODEV = 19, EISDIR = 21, EINVAL = 22, ENFILE = 23, EMFILE = 24, ENOTTY = 25, EFBIG = 27,
	ENOSPC = 28, ESPIPE = 29, EROFS = 30, EMLINK = 31, EPIPE = 32, EDOM = 33, ERANGE = 34,
	EAGAIN = 35, ENOSYS = 78
};
#define MAP_FAILED ((void *)-1)
#define MAP_ANONYMOUS MAP_ANON
#define st_mode mode
#define st_size size
#define st_ino ino
#define st_nlink nlink
#define st_uid uid
#define st_gid gid
#define S_IFMT 0170000
#define S_ISDIR(m) (((m) & S_IFMT) == 0040000)
#define S_ISREG(m) (((m) & S_IFMT) == 0100000)
#define WIFEXITED(s) (((s) & 0x7f) == 0)
#define WEXITSTATUS(s) ((s) >> 8 & 0xff)
#define WIFSIGNALED(s) (((s) & 0x7f) != 0 && ((s) & 0x7f) != 0x7f)
#define WTERMSIG(s) ((s) & 0x7f)

static int errno;

/* Return a system call's result; for an error, set errno and return -1. */
LIBC long
result(long value)
{
	if (value >= 0 || value < -4095)
		return (value);
	errno = (int)-value;
	return (-1);
}

#define RESULT(type, ...) return ((type)result(__VA_ARGS__))

LIBC int
open(const char *path, int flags, ...)
{
	va_list more;
	int mode;

	va_start(more, flags);
	mode = flags & O_CREAT ? va_arg(more, int) : 0;
	va_end(more);
	RESULT(int, CALL3(SYS_open, path, flags, mode));
}

LIBC ssize_t read(int f, void *to, size_t n) { RESULT(ssize_t, CALL3(SYS_read, f, to, n)); }
LIBC ssize_t write(int f, const void *of, size_t n) { RESULT(ssize_t, CALL3(SYS_write, f, of, n)); }
LIBC int close(int f) { RESULT(int, CALL1(SYS_close, f)); }
LIBC off_t lseek(int f, off_t to, int how) { RESULT(off_t, CALL3(SYS_lseek, f, to, how)); }
LIBC int ftruncate(int f, off_t size) { RESULT(int, CALL2(SYS_ftruncate, f, size)); }
LIBC int fsync(int f) { RESULT(int, CALL1(SYS_fsync, f)); }
LIBC int fstat(int f, struct stat *s) { RESULT(int, CALL2(SYS_fstat, f, s)); }
LIBC int stat(const char *p, struct stat *s) { RESULT(int, CALL4(SYS_fstatat, AT_FDCWD, p, s, 0)); }
LIBC int lstat(const char *p, struct stat *s)
{ RESULT(int, CALL4(SYS_fstatat, AT_FDCWD, p, s, AT_SYMLINK_NOFOLLOW)); }
LIBC int access(const char *path, int how) { RESULT(int, CALL2(SYS_access, path, how)); }
LIBC int chmod(const char *path, mode_t mode) { RESULT(int, CALL2(SYS_chmod, path, mode)); }
LIBC int unlink(const char *path) { RESULT(int, CALL1(SYS_unlink, path)); }
LIBC int link(const char *of, const char *path) { RESULT(int, CALL2(SYS_link, of, path)); }
LIBC int symlink(const char *to, const char *path) { RESULT(int, CALL2(SYS_symlink, to, path)); }
LIBC int rename(const char *of, const char *to) { RESULT(int, CALL2(SYS_rename, of, to)); }
LIBC int mkdir(const char *path, mode_t mode) { RESULT(int, CALL2(SYS_mkdir, path, mode)); }
LIBC int rmdir(const char *path) { RESULT(int, CALL1(SYS_rmdir, path)); }
LIBC int chdir(const char *path) { RESULT(int, CALL1(SYS_chdir, path)); }
LIBC int dup(int f) { RESULT(int, CALL1(SYS_dup, f)); }
LIBC int dup2(int f, int as) { RESULT(int, CALL2(SYS_dup2, f, as)); }
LIBC int pipe(int ends[2]) { RESULT(int, CALL2(SYS_pipe2, ends, 0)); }
LIBC void sync(void) { CALL0(SYS_sync); }
LIBC pid_t getpid(void) { return ((pid_t)CALL0(SYS_getpid)); }
LIBC pid_t getppid(void) { return ((pid_t)CALL0(SYS_getppid)); }
LIBC uid_t getuid(void) { return ((uid_t)CALL0(SYS_getuid)); }
LIBC gid_t getgid(void) { return ((gid_t)CALL0(SYS_getgid)); }
LIBC pid_t fork(void) { RESULT(pid_t, CALL0(SYS_fork)); }
LIBC int execve(const char *path, char *const words[], char *const variables[])
{ RESULT(int, CALL3(SYS_execve, path, words, variables)); }
LIBC pid_t waitpid(pid_t process, int *status, int how)
{ RESULT(pid_t, CALL4(SYS_wait4, process, status, how, NULL)); }
LIBC pid_t wait(int *status) { return (waitpid(-1, status, 0)); }
LIBC int kill(pid_t process, int signal) { RESULT(int, CALL2(SYS_kill, process, signal)); }
LIBC int sched_yield(void) { RESULT(int, CALL0(SYS_sched_yield)); }
LIBC int nanosleep(const struct timespec *time, struct timespec *left)
{ RESULT(int, CALL2(SYS_nanosleep, time, left)); }
LIBC int clock_gettime(clockid_t clock, struct timespec *time)
{ RESULT(int, CALL2(SYS_clock_gettime, clock, time)); }
LIBC void *mmap(void *at, size_t size, int how, int flags, int file, off_t offset)
{ RESULT(void *, CALL(SYS_mmap, at, size, how, flags, file, offset)); }
LIBC int munmap(void *at, size_t size) { RESULT(int, CALL2(SYS_munmap, at, size)); }
LIBC int mprotect(void *at, size_t size, int how) { RESULT(int, CALL3(SYS_mprotect, at, size, how)); }

LIBC unsigned
sleep(unsigned seconds)
{
	struct timespec time = { (int64_t)seconds, 0 };

	CALL2(SYS_nanosleep, &time, NULL);
	return (0);
}

LIBC int
usleep(unsigned microseconds)
{
	struct timespec time = { microseconds / 1000000, (long)(microseconds % 1000000) * 1000 };

	RESULT(int, CALL2(SYS_nanosleep, &time, NULL));
}

LIBC time_t
time(time_t *into)
{
	struct timespec now = { 0, 0 };

	CALL2(SYS_clock_gettime, CLOCK_REALTIME, &now);
	if (into != NULL)
		*into = now.tv_sec;
	return (now.tv_sec);
}

__attribute__((noreturn, unused)) static void
_exit(int status)
{
	CALL1(SYS_exit, status);
	__builtin_unreachable();
}

__attribute__((noreturn, unused)) static void exit(int status) { _exit(status); }

__attribute__((noreturn, unused)) static void
abort(void)
{
	kill(getpid(), 6);
	_exit(134);
}

/* Allocate memory, which is never freed. */
LIBC void *
malloc(size_t size)
{
	static char *at, *end;
	size_t rounded = (size + 15) & ~(size_t)15, piece;
	char *made;

	if (rounded < size)
		return (NULL);
	if ((size_t)(end - at) < rounded) {
		piece = rounded > 1 << 20 ? rounded : 1 << 20;
		made = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
		if (made == MAP_FAILED)
			return (NULL);
		at = made;
		end = made + piece;
	}
	made = at;
	at += rounded;
	return (made);
}

LIBC void *
calloc(size_t count, size_t size)
{
	size_t whole;
	void *made;

	if (__builtin_mul_overflow(count, size, &whole) || (made = malloc(whole)) == NULL)
		return (NULL);
	return (memset(made, 0, whole));
}

LIBC void free(void *what) { (void)what; }

LIBC void *
memmove(void *to, const void *from, size_t size)
{
	volatile char *p = to;
	const volatile char *q = from;

	if ((uintptr_t)to < (uintptr_t)from)
		while (size-- > 0)
			*p++ = *q++;
	else
		while (size-- > 0)
			p[size] = q[size];
	return (to);
}

LIBC char *
strcpy(char *to, const char *from)
{
	memcpy(to, from, strlen(from) + 1);
	return (to);
}

LIBC char *
strcat(char *to, const char *from)
{
	strcpy(to + strlen(to), from);
	return (to);
}

LIBC int
strncmp(const char *a, const char *b, size_t n)
{
	for (; n > 0 && *a != '\0' && *a == *b; n--)
		a++, b++;
	return (n == 0 ? 0 : (unsigned char)*a - (unsigned char)*b);
}

LIBC char *
strchr(const char *s, int c)
{
	for (; *s != (char)c; s++)
		if (*s == '\0')
			return (NULL);
	return ((char *)(uintptr_t)s);
}

LIBC int
atoi(const char *s)
{
	int value = 0, minus;

	while (*s == ' ')
		s++;
	minus = *s == '-';
	for (s += minus || *s == '+'; *s >= '0' && *s <= '9'; s++)
		value = value * 10 + (*s - '0');
	return (minus ? -value : value);
}

LIBC const char *
strerror(int number)
{
	const char *text = error_text(number);

	return (text != NULL ? text : "Unknown error");
}

LIBC void
perror(const char *what)
{
	print(2, "%s: %s\n", what, strerror(errno));
}

__attribute__((format(printf, 1, 2), unused)) static int
printf(const char *format, ...)
{
	va_list list;
	long printed;

	va_start(list, format);
	printed = vprint(1, format, list);
	va_end(list);
	return ((int)printed);
}

__attribute__((format(printf, 2, 3), unused)) static int
dprintf(int file, const char *format, ...)
{
	va_list list;
	long printed;

	va_start(list, format);
	printed = vprint(file, format, list);
	va_end(list);
	return ((int)printed);
}

LIBC int puts(const char *s) { return (printf("%s\n", s)); }
LIBC int putchar(int c) { return (printf("%c", c) == 1 ? (unsigned char)c : -1); }

#define assert(what) ((what) ? (void)0 : (print(2, "%s:%d: %s does not hold\n", __FILE__, __LINE__, \
	#what), abort()))

#endif
