"""Parts of the FreeBSD guest that are the same on all architectures."""

from collections.abc import Mapping

from emu.guest.guest import (
    AllocationProbes,
    Allocator,
    CallMembers,
    ConsoleSession,
    Exclusions,
    Guest,
    GuestBoot,
    GuestProbes,
    GuestPrograms,
    GuestRegisters,
    GuestThreads,
    GuestTraps,
    Loader,
    LockKind,
    LockMembers,
    LockPath,
    LockProbes,
    PageFaults,
    ProcessMembers,
    ProgramStart,
    SignalMembers,
    SleepMembers,
    SystemCalls,
    TerminalMembers,
    ThreadClock,
    ThreadLists,
    ThreadStart,
    ThreadSwitch,
    TrapFrame,
    WaitMembers,
)
from emu.guest.hole import FindHole
from emu.guest.tracer import TracerCode
from emu.guest.user_memory import MapMembers, SignalFrame
from emu.guests.freebsd.allocation_types import ENABLED, EVENTS, allocation_probes
from emu.guests.freebsd.allocation_types import PROVIDER as ALLOCATIONS
from emu.guests.freebsd.errors import ERRORS
from emu.guests.freebsd.static_probes import static_probes
from emu.guests.freebsd.system_calls import system_calls as call_probes

# The kinst-emu shell ends its prompt with a terminal's OSC 133 sequence (userland/shell.c).
SHELL_PROMPT = "\033]133;B\007"
# FreeBSD's own init prints this in single-user mode.
SINGLE_USER = "Enter full pathname of shell or RETURN for /bin/sh: "
PROMPTS = ("mountroot> ", SHELL_PROMPT, SINGLE_USER)
# The root shell of a FreeBSD base system (init(8), getty(8), login(1), sh(1)).  Root's shell may be
# csh(1), so sh is started first; the next line turns off its line editor and the terminal's echo,
# and makes its prompts OSC 133 sequences (B: a command is expected, C: its output follows).
ROOT = "# "
STATUS = r"printf '\033]133;D;%d\007' $?"
SESSION = ConsoleSession(
    reads="tty_wait", input="ttyin", login="getty",
    prompts=("login: ", ROOT, "$ ", "% "),
    answers=(("login: ", "root\r"), (SINGLE_USER, "\r"), (ROOT, "exec /bin/sh\r"),
             (ROOT, r"set +o emacs +o vi; PS2='\e]133;P;k=s\a'; stty -echo; "
                    r"PS1='\e]133;B\a\e]133;C\a'" "\r")),
    locked="assword:", prompt=SHELL_PROMPT, more="\033]133;P;k=s\007",
    attach="mkdir -p /files && mount -o ro /dev/vtbd{} /files",
    status=STATUS,
    tracing="kldload -n dtraceall 2>/dev/null",
    # tee(1) reads all keys, also when dtrace(1) ends before it has read the program.  With temporal
    # output, dtrace(1) loses records that are as old as the buffer's last switch; on riscv64, its
    # clock advances only with the timer's tick.
    judge="stty -opost; (trap '' PIPE; exec tee 2>/dev/null) | "
          f"dtrace -x temporal=no {{}} -s /dev/stdin 2>/tmp/errors; {STATUS}; "
          r"while IFS= read -r line || [ -n "
          r'''"$line" ]; do printf '%s\n' "$line"; done </tmp/errors; stty opost''',
    # The console is slow: awk(1) leaves out what is repeated.
    listing="stty -opost; cat >/tmp/probes.d; "
            "{ dtrace {} -s /tmp/probes.d 2>/tmp/errors; echo $? >/tmp/status; } | awk '"
            r"""/^ *[0-9]+ / { n = $NF; $1 = $NF = ""; if ($0 == p) printf " %s", n; """
            r"""else printf "\n%s,%s", $0, n; p = $0 } """
            r"""/^\t/ { gsub(/^[\t ]+/, ""); if ($0 != "") printf "\n=%s", $0; p = "" } """
            r"""END { print "" }'; """
            f"sed 's/^/!/' /tmp/errors; (exit $(cat /tmp/status)); {STATUS}; stty opost",
    # sys/cddl/dev/dtrace/riscv/dtrace_isa.c prints this for arg5 of ERROR.
    noise=rb"IMPLEMENT ME: \w{1,40}\r?\n",
    program="cat >/tmp/traced.d",
    trace="dtrace -x temporal=no -s /tmp/traced.d >/tmp/trace 2>&1 & "
          "while kill -0 $! 2>/dev/null && ! grep -q '^{}' /tmp/trace; do sleep 1; done; "
          "kill -0 $! 2>/dev/null || ! cat /tmp/trace",
    target="dtrace -x temporal=no -c {} -s /tmp/traced.d >/tmp/trace 2>&1 || ! cat /tmp/trace")
# The time in the version string, from date(1) (sys/conf/newvers.sh)
BUILT = (rb"[A-Z][a-z]{2} (?P<month>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2}) "
         rb"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) [A-Z]{1,5} (?P<year>\d{4})")
M_WAITOK_ZERO = 0x102  # M_WAITOK | M_ZERO of malloc(9)
# Functions that DTrace itself may execute, on every architecture.
EXCLUDED = frozenset(
    {"cpu_switch", "trap_check", "owner_mtx", "owner_rm", "owner_rw", "owner_sx"}
)
EXCLUDED_PREFIXES = ("dtrace_", "db_", "kdb_", "__msan", "kmsan_")
COPIED = frozenset({"sigcode", "freebsd32_sigcode", "ia32_sigcode", "elf32_sigcode"})
THREADS = ThreadLists(
    process="struct proc", thread="struct thread", registers="struct pcb",
    first_process="allproc", next_process="p_list.le_next",
    first_thread="p_threads.tqh_first", next_thread="td_plist.tqe_next",
    tid="td_tid", name="td_name", pid="p_pid", process_name="p_comm", saved="td_pcb",
    frame="td_frame",
)
# Probes whose guarded code only prepares the arguments.  Exception: if priv(9) grants a lookup
# without a check, the guarded code does more.
GUARDED = frozenset({("proc", "exit"), ("sched", "preempt"), ("priv", "priv-ok"),
                     ("priv", "priv-err")} | {("mac_framework", f"mac-{asked}-{answer}")
                                              for asked in ("check", "grant")
                                              for answer in ("ok", "err")})
# Members with a system call's state, and the flag TDP_NERRNO (sys/sys/proc.h).
CALL_MEMBERS = CallMembers("struct thread", "td_sa.args", "td_sa.callp", "td_uretoff.tdu_retval",
                           "td_errno", "td_pflags", 0x08000000)

# Members that describe a process, and the flag P_EXEC (sys/sys/proc.h).
PROCESS_MEMBERS = ProcessMembers("struct thread", "td_proc", "struct proc", "p_pid", "p_flag",
                                 0x4000, "p_comm", "p_pptr", "p_vmspace")

# Members with pending signals (sys/signalvar.h), TDA_SIG (sys/proc.h; FreeBSD 15 inserted another
# constant before it), and SIGSTOP and _SIG_MAXSIG (sys/signal.h).
SIGNAL_MEMBERS = SignalMembers("struct thread", ("td_sigqueue.sq_signals", "td_sigqueue.sq_kill"),
                               "td_ast", ((0, 14), (1_500_000, 15)), stop=17, count=128)

# Members of locks (sys/lock.h, mutex.h, sx.h, rwlock.h, lockmgr.h), in the order of
# lock_classes[]: spin and sleep mutexes, sx, rm, rm_sleepable, rw, lockmgr. The locks inside rm
# locks are mutexes and sx locks; readers of rm locks and epochs are on lists (kern_rmlock.c,
# subr_epoch.c). LO_INITIALIZED is 1 << 16; KSTACK_PAGES is 4.
LOCK_MEMBERS = LockMembers(
    "struct lock_object", "lo_flags", 24, 15, (
        LockKind("struct mtx", "mtx_lock", 7, 0, spins=True, name="spin mutex"),
        LockKind("struct mtx", "mtx_lock", 7, 0, name="mutex"),
        LockKind("struct sx", "sx_lock", 31, 1, name="sx", sharers=5), None, None,
        LockKind("struct rwlock", "rw_lock", 31, 1, name="rw", sharers=5),
        LockKind("struct lock", "lk_lock", 31, 1, name="lockmgr", sharers=5)),
    "lo_name", 1 << 16,
    ("_*mtx_*", "mtx_*", "_*rw_*", "rw_*", "_*sx_*", "sx_*", "lockmgr*", "_*lockmgr*", "atomic_*",
     "thread_lock*", "_thread_lock*", "lock_delay*", "get_curthread", "critical_*", "spinlock_*",
     "_*rm_*lock*", "rm_*lock*", "epoch_*", "_epoch_*", "turnstile_*", "vn_lock*", "_vn_lock*",
     "VOP_LOCK1*", "VOP_UNLOCK*", "vop_lock", "vop_unlock", "vop_stdlock*", "vop_stdunlock*",
     "ffs_lock", "ffs_unlock", "_vm_map_lock*", "_vm_map_trylock*", "_vm_map_unlock*"),
    (("_rm_rlock", "_rm_runlock", "rm"),
     ("_epoch_enter_preempt", "_epoch_exit_preempt", "epoch"),
     ("epoch_enter_preempt", "epoch_exit_preempt", "epoch"),
     ("epoch_enter", "epoch_exit", "epoch")), stack=4 * 4096)

# Members of struct vm_map (vm/vm_map.h), vm_object (vm/vm_object.h) and vnode (sys/vnode.h), and of
# the name cache (kern/vfs_cache.c); VV_ROOT of sys/vnode.h.
MAP_MEMBERS = MapMembers(
    space=("proc", "p_vmspace"), map=("vmspace", "vm_map"), header=("vm_map", "header"),
    changes=("vm_map", "timestamp"), lock=("vm_map", "lock.sx_lock"), shared=1,
    entry="vm_map_entry", left="left", right="right",
    start="start", end="end", offset="offset", mapped="object", object="vm_object", kind="type",
    of_file=("obj_type", "OBJT_VNODE"), shadows="backing_object",
    shadowed="backing_object_offset", file="handle",
    names=("vnode", "v_cache_dst.tqh_first"), name="namecache", directory="nc_dvp",
    length="nc_nlen", text="nc_name", root=("vnode", "v_vflag", 1), mount=("vnode", "v_mount"),
    covered=("mount", "mnt_vnodecovered"), calls=("mmap",))

# Functions that inline code of sys/mutex.h, rwlock.h and sx.h calls, or code of kern_mutex.c,
# kern_rwlock.c and kern_sx.c; the numbers are indices in LOCK_MEMBERS.
LOCK_PROBES = LockProbes("lockstat", "lockstat_enabled", (
    LockPath("__mtx_lock_sleep", "adaptive-acquire", 1, True),
    LockPath("__mtx_unlock_sleep", "adaptive-release", 1, False),
    LockPath("_mtx_lock_spin_cookie", "spin-acquire", 0, True),
    LockPath("thread_lock_flags_", "spin-acquire", 0, True),
    *(LockPath(f"__rw_{how}{what}_hard", f"rw-{event}", 5, acquires)
      for what, event, acquires in (("lock", "acquire", True), ("unlock", "release", False))
      for how in "rw"),
    *(LockPath(f"_sx_{how}{what}_hard", f"sx-{event}", 2, acquires)
      for what, event, acquires in (("lock", "acquire", True), ("unlock", "release", False))
      for how in "sx")))

# Functions and members used to start a thread (RFSTOPPED of sys/unistd.h; TSF_BOUND and
# td_get_sched() of kern/sched_ule.c).
THREAD_START = ThreadStart(
    stands="sys_read", create="kthread_add", stopped=1 << 17, lock="thread_lock_flags_",
    add="sched_add", exit="kthread_exit", thread="struct thread", pinned="td_pinned",
    scheduler="struct td_sched", cpu="ts_cpu", flags="ts_flags", bound=1)

# Functions and members used to start a program at idle priority (PRI_IDLE, PRI_MIN_IDLE of
# sys/priority.h).
PROGRAM_START = ProgramStart(
    executed="exec_setregs", frame="td_frame", ends="exit1", bind="cpuset_setithread",
    levels=(("td_pri_class", 4), ("td_user_pri", 224), ("td_base_user_pri", 224)))

# Functions and members used in a thread switch (TDS_RUNQ of sys/proc.h, TDF_SLICEEND of
# kern/sched_ule.c).
THREAD_SWITCH = ThreadSwitch(
    functions=("cpu_switch", "cpu_throw"), owes="td_owepreempt", flags="td_flags",
    ended=0x04000000, nesting="td_critnest", state="td_state", queued=3)

WAIT_MEMBERS = WaitMembers("td_wmesg", "td_lockname", "td_blocked", "ts_owner", ("lock_delay",))
# kern/kern_malloc.c and sys/malloc.h
ALLOCATION_PROBES = AllocationProbes(
    ALLOCATIONS, allocation_probes, ENABLED,
    {function: event == "free" for function, event in EVENTS.items()}, "mtp", "size", "zindx",
    passed={"mtp": 1, "size": 4, "zindx": 5},
    internal=("struct malloc_type", "ks_mti"),
    statistics=("struct malloc_type", "ks_mti.mti_stats"),
    of_cpu=("struct pcpu", "pc_zpcpu_offset"))

TERMINAL_MEMBERS = TerminalMembers(
    "p_pgrp", "pg_session.s_ttyp", "t_pgrp",
    {"pid": "p_pid", "ppid": "p_pptr.p_pid", "pgid": "p_pgrp.pg_id",
     "sid": "p_pgrp.pg_session.s_sid", "uid": "p_ucred.cr_ruid", "euid": "p_ucred.cr_uid",
     "gid": "p_ucred.cr_rgid", "egid": "p_ucred.cr_gid"})

# mi_switch(int flags) of kern/kern_synch.c, SW_TYPE_MASK and SWT_* of FreeBSD 15 (sys/proc.h).
SLEEP_MEMBERS = SleepMembers(
    leaves="mi_switch", mask=0xFF, channel="td_wchan", ready=("sched_add", "sched_wakeup"),
    reasons={1: "was preempted", 4: "yielded the CPU", 5: "used up its time slice",
             6: "was idle", 7: "waited for an interrupt", 8: "was suspended",
             9: "was preempted", 10: "was preempted", 11: "was bound to another CPU"},
    inner=("mi_switch", "sched_*", "setrunnable", "sleepq_*", "turnstile_*", "_sleep", "msleep*",
           "wakeup*", "pause_*", "cv_*", "_cv_*", "_sleep_*", "tsleep*", "sleeplk",
           *LOCK_MEMBERS.functions))


def freebsd(
    load: Loader,
    place: Loader,
    hole: FindHole,
    trap_frame: TrapFrame,
    trap_entries: frozenset[str],
    registers: GuestRegisters,
    system_calls: SystemCalls,
    page_faults: tuple[str, str, tuple[str, int, frozenset[int]]],
    page_tables: tuple[str, str],
    per_cpu: tuple[str, str, bool],
    ticks: Mapping[str, int],
    releases: str,
    entry_path: frozenset[str],
    tracepoint: bytes,
    interrupts: tuple[str, ...],
    context: Mapping[str, tuple[str, int]],
    tracer: TracerCode,
    entry_prefixes: tuple[str, ...] = (),
    seam_word: str = "",
) -> Guest:
    """Return the FreeBSD guest on one architecture.

    :param page_faults: the last three members of ``PageFaults``.
    :param page_tables: member of ``struct pmap`` with the root of the page tables, and the register
        that contains it.
    :param per_cpu: ``per_cpu`` and ``per_cpu_outside`` of ``GuestThreads``.
    :param ticks: see ``ThreadClock``.
    :param entry_path: functions that handle a breakpoint exception.
    :param context: registers in a signal frame's ``mcontext_t``; see ``SignalFrame``.
    :param tracer: FreeBSD's own DTrace.
    :param entry_prefixes: prefixes of the names of more such functions.
    """
    return Guest(
        name="FreeBSD", recognized_by="", registers=registers,
        allocator=Allocator("malloc", "M_TEMP", M_WAITOK_ZERO),
        boot=GuestBoot(
            load, place,
            # At the mountroot prompt, the kernel waits in the function that reads the console.
            prompts=PROMPTS, shell_prompt=SHELL_PROMPT,
            starts=("mi_startup",), readers=("cngets", "cncheckc", "cngetc"),
            panic="vpanic", panic_ends=(b"Uptime: ", b"KDB: enter: ", b"db> "), releases=releases,
            unmounted=rb"Mounting from ([!-~]{1,100}) failed with error (\d{1,3})"
            rb"(?:: [ -~]{1,200})?\.",
            needs={"options FFS": "ffs_mount", "device md": "g_md_class"},
            several_cpus=("options SMP", "cpu_mp_start"),
            no_file_system=frozenset({22, 97}),  # errors EINVAL and EINTEGRITY (sys/errno.h)
            version="version", built=BUILT, session=SESSION),
        traps=GuestTraps(
            hole, trap_frame, trap_entries, seam="dtrace_invop_jump_addr",
            hooks="dtrace_trap_func", seam_word=seam_word,
            exclusions=Exclusions(EXCLUDED | entry_path, EXCLUDED_PREFIXES + entry_prefixes,
                                  "dtrace_safe_", COPIED),
            # sys/vm/vm_fault.c: vm_fault_trap(map, vaddr, fault_type, fault_flags, signo, ucode).
            page_faults=PageFaults("vm_fault_trap", 2, *page_faults), interrupts=interrupts),
        threads=GuestThreads(
            per_cpu[0], THREADS, per_cpu[1:], THREAD_START, THREAD_SWITCH, WAIT_MEMBERS,
            SLEEP_MEMBERS, LOCK_MEMBERS,
            # CPU time of threads: kern/kern_synch.c, kern_thread.c, kern_clock.c, kern_resource.c,
            # set_cputicker() of kern/kern_tc.c.
            clock=ThreadClock(
                ("thread", "td_runtime"), ("pcpu", "pc_switchtime"), ("thread", "td_tid"),
                frozenset({"mi_switch", "thread_exit", "statclock", "calcru", "rufetchtd"}),
                "cpu_ticks", "tc_cpu_ticks", "timehands",
                (("timehands", "th_counter"), ("timecounter", "tc_get_timecount")), ticks),
            terminals=TERMINAL_MEMBERS, begins="fork_trampoline", atomics="atomic_"),
        programs=GuestPrograms(
            "lastpid", PROCESS_MEMBERS, system_calls, CALL_MEMBERS,
            (f"p_vmspace.vm_pmap.{page_tables[0]}", page_tables[1]), SIGNAL_MEMBERS, PROGRAM_START,
            (("thread", "td_proc"), ("proc", "p_args"), ("pargs", "ar_length"),
             ("pargs", "ar_args")), ERRORS, ("execve", "fexecve"),
            ("fork", "pdfork"), 99_999, ("write", "writev"),  # sys/sys/proc.h: PID_MAX
            MAP_MEMBERS, "/usr/lib/debug{}.debug",
            # sys/vm/vm_map.h, sys/sys/sysent.h; sendsig() of the architecture.
            SignalFrame(("proc", "p_vmspace"), ("vmspace", "vm_shp_base"), ("proc", "p_sysent"),
                        ("sysentvec", "sv_sigcode_offset"), ("sysentvec", "sv_sigcodeoff"),
                        ("sysentvec", "sv_szsigcode"), ("sigframe", "sf_uc.uc_mcontext"), context)),
        probes=GuestProbes(
            static_probes, call_probes, gates={"sdt_probe": 5, "sdt_probe6": 6},
            tracepoint=tracepoint, guard=("sdt_probes_enabled", GUARDED),
            operations=("vfs", "vop"), locks=LOCK_PROBES, allocations=ALLOCATION_PROBES, unseen={
                ("lockstat", f"*-{event}"): "probes named *-block and *-spin do not fire, because "
                "the kernel measures how long a thread blocks or spins only while "
                f"{LOCK_PROBES.enabled} is set" for event in ("block", "spin")},
            tracer=tracer),
        members={
            "tid": (("thread", "td_tid"),), "errno": (("thread", "td_errno"),),
            "pid": (("thread", "td_proc"), ("proc", "p_pid")),
            "ppid": (("thread", "td_proc"), ("proc", "p_pptr"), ("proc", "p_pid")),
            "execname": (("thread", "td_proc"), ("proc", "p_comm")),
            "uid": (("thread", "td_ucred"), ("ucred", "cr_uid")),
            "gid": (("thread", "td_ucred"), ("ucred", "cr_gid")),
            "jid": (("thread", "td_ucred"), ("ucred", "cr_prison"), ("prison", "pr_id")),
            **dict.fromkeys(("jailname", "zonename"), (
                ("thread", "td_ucred"), ("ucred", "cr_prison"), ("prison", "pr_name"))),
        },
    )
