/*
 * A small shell, which is also init, and the tools; the name of the program selects what to run.
 *
 * Before and after each command the shell prints marks (OSC 133, the shell integration of terminals),
 * which include the status. The host uses them to find a command's output.
 */
#include "system.h"

#include "errors.h"

enum { LINE = 1024, WORDS = 64, PARTS = 16 };

static const struct sigaction as_usual; /* the default action */
static char **variables;
static int status;

struct part {
	char *words[WORDS + 1];
	const char *input, *output;
	int append;
};

static int
fail(const char *what, long error)
{
	const char *text = error_text(-error);

	if (text != NULL)
		print(2, "%s: %s\n", what, text);
	else
		print(2, "%s: error %d\n", what, (int)-error);
	return (1);
}

/* -- tools ----------------------------------------------------------------------------------- */

static int
copy(int from)
{
	static char buffer[16384];
	long n;

	while ((n = CALL3(SYS_read, from, buffer, sizeof(buffer))) > 0)
		for (long at = 0, m; at < n; at += m)
			if ((m = CALL3(SYS_write, 1, buffer + at, n - at)) < 0)
				return (fail("write", m));
	return (n < 0 ? fail("read", n) : 0);
}

static int
cat(char **words)
{
	int result = 0;

	if (words[1] == NULL)
		return (copy(0));
	for (char **word = words + 1; *word != NULL; word++) {
		long file = CALL2(SYS_open, *word, O_RDONLY);

		if (file < 0) {
			result = fail(*word, file);
			continue;
		}
		result |= copy((int)file);
		CALL1(SYS_close, file);
	}
	return (result);
}

static int
echo(char **words)
{
	for (char **word = words + 1; *word != NULL; word++)
		print(1, "%s%s", word == words + 1 ? "" : " ", *word);
	print(1, "\n");
	return (0);
}

/* Print a date as ls does: convert days since 1970 to month and day, by eras of 400 years. */
static void
print_date(int64_t time)
{
	static const char *const months[] = { "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug",
	    "Sep", "Oct", "Nov", "Dec" };
	int64_t second = (time % 86400 + 86400) % 86400;
	int64_t days = (time - second) / 86400 + 719468;
	int64_t of_era = (days % 146097 + 146097) % 146097;
	int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
	int64_t day = of_era - (365 * year + year / 4 - year / 100), month = (5 * day + 2) / 153;

	print(1, "%s %2d %02d:%02d", months[(month + 2) % 12], (int)(day - (153 * month + 2) / 5 + 1),
	    (int)(second / 3600), (int)(second / 60 % 60));
}

/* Print a line of ls -l: mode, links, owner, group, size, date, name. */
static void
print_entry(int folder, const char *path, const char *name)
{
	static const char kinds[] = "?pc?d?b?-?l?s?w?";
	struct stat s;
	char mode[11] = "----------";
	long error = CALL4(SYS_fstatat, folder, path, &s, AT_SYMLINK_NOFOLLOW);

	if (error < 0) {
		fail(name, error);
		return;
	}
	mode[0] = kinds[s.mode >> 12];
	for (int i = 0; i < 9; i++)
		if (s.mode >> (8 - i) & 1)
			mode[i + 1] = "rwx"[i % 3];
	if (s.mode & 04000)
		mode[3] = mode[3] == 'x' ? 's' : 'S';
	if (s.mode & 02000)
		mode[6] = mode[6] == 'x' ? 's' : 'S';
	if (s.mode & 01000)
		mode[9] = mode[9] == 'x' ? 't' : 'T';
	print(1, "%s %3lu %lu %lu %9ld ", mode, (unsigned long)s.nlink, (unsigned long)s.uid,
	    (unsigned long)s.gid, (long)s.size);
	print_date(s.mtime.tv_sec);
	print(1, " %s\n", name);
}

static int
list_one(const char *path, int is_long)
{
	static _Alignas(struct dirent) char buffer[8192];
	struct stat s;
	long file = CALL4(SYS_fstatat, AT_FDCWD, path, &s, 0), n;
	int64_t base;

	if (file < 0)
		return (fail(path, file));
	if (s.mode >> 12 != 4) { /* not a directory */
		if (is_long)
			print_entry(AT_FDCWD, path, path);
		else
			print(1, "%s\n", path);
		return (0);
	}
	file = CALL2(SYS_open, path, O_RDONLY);
	if (file < 0)
		return (fail(path, file));
	while ((n = CALL4(SYS_getdirentries, file, buffer, sizeof(buffer), &base)) > 0)
		for (long at = 0; at < n;) {
			struct dirent *entry = (struct dirent *)(buffer + at);

			if (entry->fileno != 0 && entry->name[0] != '.') {
				if (is_long)
					print_entry((int)file, entry->name, entry->name);
				else
					print(1, "%s%s\n", entry->name, entry->type == 4 ? "/" : "");
			}
			at += entry->reclen;
		}
	CALL1(SYS_close, file);
	return (n < 0 ? fail(path, n) : 0);
}

static int
list(char **words)
{
	int is_long = words[1] != NULL && strcmp(words[1], "-l") == 0, result = 0;
	char **word = words + 1 + is_long;

	if (*word != NULL && (*word)[0] == '-' && (*word)[1] != '\0') {
		print(2, "usage: ls [-l] [file ...]\n");
		return (2);
	}
	if (*word == NULL)
		return (list_one(".", is_long));
	for (; *word != NULL; word++)
		result |= list_one(*word, is_long);
	return (result);
}

static int
count(char **words)
{
	static char buffer[16384];
	unsigned long lines = 0, bytes = 0;
	long n;

	(void)words;
	while ((n = CALL3(SYS_read, 0, buffer, sizeof(buffer))) > 0) {
		bytes += (unsigned long)n;
		for (long at = 0; at < n; at++)
			lines += buffer[at] == '\n';
	}
	print(1, "%lu %lu\n", lines, bytes);
	return (0);
}

static unsigned long
number(const char *text)
{
	unsigned long value = 0;

	for (; *text >= '0' && *text <= '9'; text++)
		value = 10 * value + (unsigned long)(*text - '0');
	return (value);
}

static int
sleep_for(char **words)
{
	struct timespec time = { words[1] == NULL ? 0 : (int64_t)number(words[1]), 0 };

	return (CALL2(SYS_nanosleep, &time, NULL) < 0);
}

static long
remount(const char *how)
{
	struct iovec words[] = {
		{ "fstype", 7 }, { "ufs", 4 }, { "fspath", 7 }, { "/", 2 }, { how, 3 }, { NULL, 0 },
	};

	return (CALL3(SYS_nmount, words, 6, MNT_UPDATE));
}

/* Remount the root file system: "mount -u -o ro /" or "mount -u -o rw /" (mount(8)). */
static int
mount(char **words)
{
	long error;

	for (int i = 1; i < 5; i++)
		if (words[i] == NULL || (i == 3 ? strcmp(words[i], "ro") != 0 &&
		    strcmp(words[i], "rw") != 0 :
		    strcmp(words[i], i == 1 ? "-u" : i == 2 ? "-o" : "/") != 0)) {
			print(2, "usage: mount -u -o ro|rw /\n");
			return (2);
		}
	error = remount(words[3]);
	return (error < 0 ? fail("/", error) : 0);
}

static int
synchronize(char **words)
{
	(void)words;
	CALL0(SYS_sync);
	return (0);
}

static int
send_signal(char **words)
{
	int signal = SIGTERM;
	char **word = words + 1;
	long result;

	if (*word != NULL && **word == '-')
		signal = (int)number(*word++ + 1);
	if (*word == NULL)
		return (2);
	result = CALL2(SYS_kill, number(*word), signal);
	return (result < 0 ? fail(*word, result) : 0);
}

static int
each(char **words, long call, long more)
{
	int result = 0;

	for (char **word = words + 1; *word != NULL; word++) {
		long error = CALL2(call, *word, more);

		if (error < 0)
			result = fail(*word, error);
	}
	return (result);
}

static int make_folder(char **words) { return (each(words, SYS_mkdir, 0755)); }
static int remove_file(char **words) { return (each(words, SYS_unlink, 0)); }
static int remove_folder(char **words) { return (each(words, SYS_rmdir, 0)); }
static int yes(char **words) { (void)words; return (0); }
static int no(char **words) { (void)words; return (1); }

static const struct {
	const char *name;
	int (*run)(char **words);
} tools[] = {
	{ "cat", cat }, { "echo", echo }, { "false", no }, { "kill", send_signal }, { "ls", list },
	{ "mkdir", make_folder }, { "mount", mount }, { "rm", remove_file }, { "rmdir", remove_folder },
	{ "sleep", sleep_for }, { "sync", synchronize }, { "true", yes }, { "wc", count },
};
enum { TOOLS = sizeof(tools) / sizeof(tools[0]) };

/* -- the shell ------------------------------------------------------------------------------- */

static void
execute(char **words)
{
	static char path[LINE + 8];
	static const char *const places[] = { "", "/bin/", "/sbin/", NULL };
	const char *name = words[0];
	long error = -2;
	int direct = 0;

	for (const char *p = name; *p != '\0'; p++)
		direct |= *p == '/';
	for (const char *const *place = places; *place != NULL; place++) {
		if (direct != (**place == '\0'))
			continue;
		memcpy(path, *place, strlen(*place));
		memcpy(path + strlen(*place), name, strlen(name) + 1);
		error = CALL3(SYS_execve, path, words, variables);
		if (error != -2)
			break;
	}
	if (error == -2)
		print(2, "%s: not found\n", name);
	else if (error == -8)
		print(2, "%s: not a program for this machine\n", name);
	else
		fail(name, error);
	CALL1(SYS_exit, error == -2 ? 127 : 126);
}

static int
redirected(const char *path, int flags, int as)
{
	long file;

	if (path == NULL)
		return (0);
	file = CALL3(SYS_open, path, flags, 0644);
	if (file < 0)
		return (fail(path, file));
	CALL2(SYS_dup2, file, as);
	CALL1(SYS_close, file);
	return (0);
}

/* Convert a wait status to a shell status: the exit status, or 128 plus the signal. */
static int
ended(int word)
{
	return (word & 0x7f ? 128 + (word & 0x7f) : word >> 8 & 0xff);
}

static int
builtin(struct part *part)
{
	char **words = part->words;

	if (strcmp(words[0], "cd") == 0) {
		long error = CALL1(SYS_chdir, words[1] == NULL ? "/" : words[1]);

		status = error < 0 ? fail("cd", error) : 0;
	} else if (strcmp(words[0], "exit") == 0)
		CALL1(SYS_exit, words[1] == NULL ? (unsigned long)status : number(words[1]));
	else if (strcmp(words[0], "poweroff") == 0)
		status = fail("poweroff", CALL1(SYS_reboot, RB_POWEROFF));
	else if (strcmp(words[0], "wait") == 0) {
		int word;

		while (CALL4(SYS_wait4, -1, &word, 0, NULL) > 0)
			status = ended(word);
	} else
		return (0);
	return (1);
}

/* Run commands that are connected by pipes; the status is that of the last command. */
static void
run(struct part *parts, int number_of, int behind)
{
	int from = -1, word = 0;
	long last = 0, processes[PARTS] = { 0 };

	if (number_of == 1 && builtin(&parts[0]))
		return;
	for (int i = 0; i < number_of; i++) {
		struct part *part = &parts[i];
		int ends[2] = { -1, -1 };

		if (i + 1 < number_of && CALL2(SYS_pipe2, ends, 0) < 0)
			return;
		last = processes[i] = CALL0(SYS_fork);
		if (last < 0) {
			status = fail("fork", last);
			return;
		}
		if (last == 0) {
			CALL3(SYS_sigaction, SIGINT, &as_usual, NULL);
			if (from >= 0)
				CALL2(SYS_dup2, from, 0);
			if (ends[1] >= 0)
				CALL2(SYS_dup2, ends[1], 1);
			for (int file = 3; file < 64; file++)
				CALL1(SYS_close, file);
			if (redirected(part->input, O_RDONLY, 0) ||
			    redirected(part->output, O_WRONLY | O_CREAT |
			    (part->append ? O_APPEND : O_TRUNC), 1))
				CALL1(SYS_exit, 1);
			execute(part->words);
		}
		if (from >= 0)
			CALL1(SYS_close, from);
		if (ends[1] >= 0)
			CALL1(SYS_close, ends[1]);
		from = ends[0];
	}
	if (behind) {
		status = 0;
		return;
	}
	/* Init also reaps orphaned processes, which do not count as parts of this pipeline. */
	for (int left = number_of; left > 0;) {
		long process = CALL4(SYS_wait4, -1, &word, 0, NULL);

		if (process < 0)
			return;
		if (process == last)
			status = ended(word);
		for (int i = 0; i < number_of; i++)
			left -= processes[i] == process;
	}
}

static char text[2 * LINE];

/* Return the next word of a line without its quotes, or NULL at the end of the line.  An operator is
 * a separate word, for which *operator is set to 1. */
static char *
word_at(char **line, char **room, int *operator)
{
	char *from = *line, *to = *room, *begin = to, quote = '\0';

	while (*from == ' ' || *from == '\t')
		from++;
	*operator = 0;
	if (*from == '\0' || *from == '#') {
		*line = from;
		return (NULL);
	}
	if (*from == '|' || *from == '&' || *from == ';' || *from == '<' || *from == '>') {
		*operator = 1;
		*to++ = *from;
		if (from[1] == *from && *from != '<' && *from != ';')
			*to++ = *from++;
		from++;
	} else
		for (; *from != '\0'; from++) {
			if (quote == '\0' && (*from == ' ' || *from == '\t' || *from == '|' ||
			    *from == '&' || *from == ';' || *from == '<' || *from == '>'))
				break;
			if (*from == quote)
				quote = '\0';
			else if (quote == '\0' && (*from == '\'' || *from == '"'))
				quote = *from;
			else if (quote != '\'' && *from == '\\' && from[1] != '\0')
				*to++ = *++from;
			else if (quote != '\'' && *from == '$' && from[1] == '?') {
				from++;
				if (status >= 100)
					*to++ = (char)('0' + status / 100);
				if (status >= 10)
					*to++ = (char)('0' + status / 10 % 10);
				*to++ = (char)('0' + status % 10);
			} else
				*to++ = *from;
		}
	*to++ = '\0';
	*line = from;
	*room = to;
	return (begin);
}

static int
wrong(const char *what)
{
	print(2, "%s\n", what);
	status = 2;
	return (-1);
}

/* Run a line: commands separated by ; & && ||, each of which consists of parts separated by |. */
static int
interpret(char *line)
{
	static struct part parts[PARTS];
	char *room = text, *word;
	int operator, skip = 0;

	for (;;) {
		int number_of = 0, words = 0, behind = 0, more = 0;
		char join = ';';

		memset(parts, 0, sizeof(parts));
		for (;;) {
			struct part *part = &parts[number_of];

			word = word_at(&line, &room, &operator);
			if (word == NULL)
				break;
			if (operator && (*word == '<' || *word == '>')) {
				char *path = word_at(&line, &room, &operator);

				if (path == NULL || operator)
					return (wrong("no file after < or >"));
				if (*word == '<')
					part->input = path;
				else
					part->output = path, part->append = word[1] == '>';
			} else if (operator && strcmp(word, "|") == 0) {
				if (words == 0 || number_of + 1 == PARTS)
					return (wrong("no command before |, or too many"));
				number_of++;
				words = 0;
			} else if (operator) {
				join = word[1] != '\0' ? *word : ';';
				behind = strcmp(word, "&") == 0;
				more = 1;
				break;
			} else if (words == WORDS)
				return (wrong("too many words"));
			else
				part->words[words++] = word;
		}
		if (words == 0 && number_of > 0)
			return (wrong("no command follows |"));
		if (words > 0 && !skip)
			run(parts, number_of + 1, behind);
		if (!more)
			return (0);
		skip = join == '&' ? status != 0 : join == '|' ? status == 0 : 0;
	}
}

/* Read a line of at most size - 1 characters; return -1 at the end of the input. */
static long
read_line(char *line, size_t size)
{
	size_t at = 0;
	long n;

	while (at + 1 < size && (n = CALL3(SYS_read, 0, line + at, 1)) == 1)
		if (line[at++] == '\n')
			break;
	line[at > 0 && line[at - 1] == '\n' ? at - 1 : at] = '\0';
	return (at > 0 ? (long)at : -1);
}

static void
begin(void)
{
	struct sigaction nothing = { (void (*)(int, struct siginfo *, void *))1, 0, { { 0 } } };
	long file = CALL2(SYS_open, "/dev/console", O_RDWR), error;

	for (int as = 0; as < 3; as++)
		CALL2(SYS_dup2, file, as);
	if (file > 2)
		CALL1(SYS_close, file);
	CALL0(SYS_setsid);
	CALL3(SYS_ioctl, 0, 0x20007461, 0); /* TIOCSCTTY */
	CALL3(SYS_sigaction, SIGINT, &nothing, NULL);
	/* The kernel mounts the root file system read-only. */
	if ((error = remount("rw")) < 0)
		fail("the root file system cannot be written", error);
}

int
main(int argc, char **argv, char **environment)
{
	static char line[LINE];
	static char *plain[] = { "PATH=/bin:/sbin", "HOME=/", NULL };
	const char *name = argv[0], *slash = argv[0];
	int first = CALL0(SYS_getpid) == 1;

	for (; *slash != '\0'; slash++)
		if (*slash == '/')
			name = slash + 1;
	for (int i = 0; i < TOOLS; i++)
		if (strcmp(name, tools[i].name) == 0)
			return (tools[i].run(argv));
	variables = first ? plain : environment;
	if (first)
		begin();
	else if (argc == 3 && strcmp(argv[1], "-c") == 0) {
		interpret(argv[2]);
		return (status);
	}
	for (;;) {
		print(1, "\033]133;A\007# \033]133;B\007");
		if (read_line(line, sizeof(line)) < 0)
			break;
		print(1, "\033]133;C\007");
		interpret(line);
		print(1, "\033]133;D;%d\007", status);
	}
	return (status);
}
