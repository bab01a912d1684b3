"""Table of system calls for cross-validation, as calls of their kernel functions.

The arguments are those that a program at our shell can use: its own descriptors and memory, files
in /etc and /tmp.  The lines have the format of ``call_table``.  No call waits, because only the
program itself could end the wait.  The table leaves out calls that end, replace or copy the program
(exit, execve, fork, thr_*, reboot); that read or set the time, whose counters depend on the model;
that write to the console, a device whose state QEMU does not receive; and that GENERIC has not
configured.
"""

from kinst.verify.crosscheck.call_table import entries

# Constants from FreeBSD's sys/fcntl.h, sys/mman.h and sys/socket.h: O_RDWR | O_CREAT,
# PROT_READ | PROT_WRITE, MAP_ANON | MAP_PRIVATE, AF_LOCAL, AF_INET; AT_FDCWD is -100.
FILE = 'f = sys_open("/tmp/x", 0x202, 0644)'
FILLED = f"{FILE}; sys_write(f, {{d}}, {{n}})"
ROOT = 'f = sys_open("/", 0, 0)'
PAGES = "p = sys_mmap(0, 0x8000, 3, 0x1002, -1, 0)"
LOCAL = "s = sys_socket(1, 1, 0)"
DATAGRAM = "s = sys_socket(2, 2, 0)"
STREAM = "s = sys_socket(2, 1, 0)"
PAIR = "p = buf(8); sys_socketpair(1, 1, 0, p)"
QUEUE = "q = sys_kqueue()"
SHARED = "h = sys_shm_open2(1, 2, 0644, 0, 0)"  # SHM_ANON

LOOPBACK = r'bytes("\x10\x02\0\0\x7f\0\0\x01\0\0\0\0\0\0\0\0")'  # struct sockaddr_in
SIXTEEN = r'bytes("\x10\0\0\0")'  # the length of an address buffer: 16
ROOM = r'bytes("\x40\0\0\0\0\0\0\0")'  # the length of a buffer for sysctl: 64
RELEASE = r'bytes("\x01\0\0\0\x02\0\0\0")'  # CTL_KERN, KERN_OSRELEASE

# Calls made before the comparison, so that files, buffers and zones already exist: their
# creation takes more instructions than are compared in one call.
PREPARED = (FILE, 'sys_mkdir("/tmp/first", 0755)', PAIR, DATAGRAM, STREAM,
            "sys_pipe2(buf(8), 0)", QUEUE, "sys_cpuset(buf(8))",
            f"{PAGES}; sys_mlock(p, 0x1000); sys_munmap(p, 0x8000)", "sys_close_range(3, 19, 0)")

ENTRIES = entries(f"""
getpid          sys_getpid()
getppid         sys_getppid()
getuid          sys_getuid()
geteuid         sys_geteuid()
getgid          sys_getgid()
getegid         sys_getegid()
getpgrp         sys_getpgrp()
getpgid         sys_getpgid({{k}})
getsid          sys_getsid({{k}})
getresuid       b = buf(16); sys_getresuid(b, b+4, b+8)
getresgid       b = buf(16); sys_getresgid(b, b+4, b+8)
getgroups       sys_getgroups({{k}}, buf(64))
setgroups       sys_setgroups(3, {{d}})
setuid          sys_setuid({{n}})
seteuid         sys_seteuid({{n}})
setgid          sys_setgid({{n}})
setreuid        sys_setreuid(-1, {{n}})
setresgid       sys_setresgid(-1, {{n}}, -1)
setpgid         sys_setpgid(0, {{n}})
setsid          sys_setsid()
getlogin        sys_getlogin(buf(64), {{n}})
setlogin        sys_setlogin({{s}})
getloginclass   sys_getloginclass(buf(64), {{n}})
setloginclass   sys_setloginclass({{s}})
issetugid       sys_issetugid()
__setugid       sys___setugid(0)
umask           sys_umask({{n}})
getdtablesize   sys_getdtablesize()
getrlimit       sys_getrlimit({{k}}, buf(16))
setrlimit       l = buf(16); sys_getrlimit({{k}}, l); sys_setrlimit({{k}}, l)
getpriority     sys_getpriority(0, 0)
setpriority     sys_setpriority(0, 0, {{k}})
rtprio          sys_rtprio(0, 0, buf(8))
sched_getparam  sys_sched_getparam(0, buf(8))
sched_getscheduler sys_sched_getscheduler(0)
sched_get_priority_max sys_sched_get_priority_max({{k}})
sched_get_priority_min sys_sched_get_priority_min({{k}})
sched_rr_get_interval sys_sched_rr_get_interval(0, buf(16))
sched_getcpu    sys_sched_getcpu()
cpuset_getid    sys_cpuset_getid(3, 1, -1, buf(8))
cpuset_getaffinity sys_cpuset_getaffinity(3, 1, -1, 128, buf(128))
cpuset          sys_cpuset(buf(8))
thr_self        sys_thr_self(buf(8))
thr_set_name    i = buf(8); sys_thr_self(i); sys_thr_set_name(100, {{s}})
thr_kill        sys_thr_kill({{w}}, 0)
kill            sys_kill({{w}}, 0)
sigaction       sys_sigaction({{k}}, 0, buf(32))
sigaction       sys_sigaction(30, buf(32), buf(32))
sigprocmask     sys_sigprocmask(1, {{d}}, buf(16))
sigpending      sys_sigpending(buf(16))
sigaltstack     sys_sigaltstack(0, buf(24))
sigqueue        sys_sigqueue(0, {{n}}, {{u}})
sigfastblock    w = buf(8); sys_sigfastblock(1, w); sys_sigfastblock(2, 0)
dup             sys_dup({{k}})
dup             sys_dup(1)
dup2            sys_dup2(1, {{n}})
close           sys_close({{k}})
close_range     sys_close_range({{n}}, {{n}}, 0)
fcntl           sys_fcntl(1, {{k}}, {{n}})
fcntl           sys_fcntl(1, 3, 0)
fcntl           sys_fcntl(1, 0, {{n}})
flock           {FILE}; sys_flock(f, 2); sys_flock(f, 8)
open            sys_open("/etc/motd", 0, 0)
open            sys_open({{s}}, 0, 0)
openat          sys_openat(-100, "/bin", 0, 0)
access          sys_access("/bin", {{k}})
eaccess         sys_eaccess("/bin/ls", 1)
faccessat       sys_faccessat(-100, "/tmp", 4, 0)
stat            sys_fstatat(-100, "/bin/ls", buf(256), 0)
fstat           sys_fstat(1, buf(256))
fstat           {ROOT}; sys_fstat(f, buf(256))
lseek           {FILE}; sys_lseek(f, {{w}}, 0)
lseek           sys_lseek(1, 0, 1)
read            {FILLED}; sys_lseek(f, 0, 0); sys_read(f, buf(64), {{n}})
read            sys_read({{k}}, buf(16), 0)
write           {FILLED}
pread           {FILLED}; sys_pread(f, buf(64), {{n}}, {{k}})
pwrite          {FILE}; sys_pwrite(f, {{d}}, {{n}}, {{n}})
fsync           {FILLED}; sys_fsync(f)
fdatasync       {FILLED}; sys_fdatasync(f)
sync            sys_sync()
ftruncate       {FILE}; sys_ftruncate(f, {{n}})
truncate        {FILE}; sys_truncate("/tmp/x", {{n}})
posix_fadvise   {FILE}; sys_posix_fadvise(f, 0, 4096, {{k}})
fchmod          {FILE}; sys_fchmod(f, 0600)
chmod           {FILE}; sys_chmod("/tmp/x", 0{{p}})
chown           {FILE}; sys_chown("/tmp/x", {{n}}, {{n}})
chflags         {FILE}; sys_chflags("/tmp/x", 1)
pathconf        sys_pathconf("/", {{k}})
fpathconf       sys_fpathconf(1, {{k}})
mkdir           sys_mkdir("/tmp/d", 0755)
rmdir           sys_rmdir("/tmp/first")
link            {FILE}; sys_link("/tmp/x", "/tmp/y")
unlink          {FILE}; sys_unlink("/tmp/x")
symlink         sys_symlink({{s}}, "/tmp/l")
readlink        sys_symlink({{s}}, "/tmp/l"); sys_readlink("/tmp/l", buf(64), {{n}})
rename          {FILE}; sys_rename("/tmp/x", "/tmp/z")
mkfifo          sys_mkfifo("/tmp/p", 0600)
chdir           sys_chdir("/bin")
fchdir          {ROOT}; sys_fchdir(f)
__getcwd        sys___getcwd(buf(64), 64)
__realpathat    sys___realpathat(-100, "/bin/../tmp", buf(64), 64, 0)
getdirentries   {ROOT}; sys_getdirentries(f, buf(1024), 1024, buf(8))
statfs          sys_statfs("/", buf(1024))
getfsstat       sys_getfsstat(0, 0, 2)
getfh           sys_getfh("/", buf(64))
fhopen          h = buf(64); sys_getfh("/bin/ls", h); sys_fhopen(h, 0)
mmap            {PAGES}
mmap            sys_mmap(0, {{w}}, 3, 0x1002, -1, 0)
munmap          {PAGES}; sys_munmap(p, 0x4000)
mprotect        {PAGES}; sys_mprotect(p, 0x1000, {{k}})
madvise         {PAGES}; sys_madvise(p, 0x8000, {{k}})
minherit        {PAGES}; sys_minherit(p, 0x1000, 1)
mincore         {PAGES}; sys_mincore(p, 0x8000, buf(16))
msync           {PAGES}; sys_msync(p, 0x1000, 1)
mlock           {PAGES}; sys_mlock(p, 0x1000); sys_munlock(p, 0x1000)
break           sys_break(0)
pipe2           sys_pipe2(buf(8), {{n}})
pipe2           sys_pipe2(buf(8), 0)
socket          sys_socket({{k}}, {{k}}, 0)
socket          {STREAM}
socketpair      {PAIR}
bind            {DATAGRAM}; sys_bind(s, {LOOPBACK}, 16)
listen          {STREAM}; sys_listen(s, {{k}})
getsockname     {DATAGRAM}; n = {SIXTEEN}; sys_getsockname(s, buf(16), n)
getpeername     {STREAM}; sys_getpeername(s, buf(16), {SIXTEEN})
setsockopt      {STREAM}; sys_setsockopt(s, 0xffff, 4, bytes("\\x01\\0\\0\\0"), 4)
getsockopt      {STREAM}; sys_getsockopt(s, 0xffff, 0x1001, buf(8), bytes("\\x08\\0\\0\\0"))
shutdown        {LOCAL}; sys_shutdown(s, 2)
kqueue          {QUEUE}
kevent          {QUEUE}; sys_kevent(q, 0, 0, buf(64), 1, buf(16))
poll            sys_poll(0, 0, 0)
select          sys_select(1, 0, 0, 0, buf(16))
shm_open2       {SHARED}
shm_open2       {SHARED}; sys_ftruncate(h, {{n}})
shm_unlink      sys_shm_unlink({{s}})
semget          sys_semget(0, {{k}}, 0x380)
msgget          sys_msgget(0, 0x380)
shmget          sys_shmget(0, 4096, 0x380)
_umtx_op        sys__umtx_op(buf(8), 3, {{w}}, 0, 0)
__sysctl        sys___sysctl({RELEASE}, 2, buf(64), {ROOM}, 0, 0)
__sysctlbyname  sys___sysctlbyname("kern.ostype", 11, buf(64), {ROOM}, 0, 0)
__sysctlbyname  sys___sysctlbyname("hw.ncpu", 7, buf(8), bytes("\\x04\\0\\0\\0\\0\\0\\0\\0"), 0, 0)
kenv            sys_kenv(0, {{s}}, buf(64), 64)
kldnext         sys_kldnext(0)
kldfirstmod     sys_kldfirstmod({{k}})
kldfind         sys_kldfind("kernel")
modnext         sys_modnext({{k}})
modfnext        sys_modfnext({{k}})
modfind         sys_modfind({{s}})
getfsstat       sys_getfsstat(buf(1024), {{n}}, 2)
cap_getmode     sys_cap_getmode(buf(8))
cap_fcntls_get  sys_cap_fcntls_get(1, buf(8))
cap_fcntls_limit {FILE}; sys_cap_fcntls_limit(f, 0)
jail_remove     sys_jail_remove({{n}})
procctl         sys_procctl(0, 1, {{k}}, buf(64))
uuidgen         sys_uuidgen(buf(16), 0)
nosys           sys_quotactl("/", 0, 0, 0)
""")
