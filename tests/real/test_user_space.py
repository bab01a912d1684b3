"""Programs of our userland on GENERIC kernels: $KINST_KERNELS/<arch>/kernel.

$KINST_SEED repeats a choice that a failure has printed.
"""

import json
import os
import random
import re
import subprocess
import tarfile
from dataclasses import replace

import pytest

import kinst_emu
from emu.elf.boot_options import DiskImage
from emu.elf.symbols import STT_FUNC
from emu.machine.machine import StopReason, Until
from emu.unicorn import snapshot
from emu.unicorn._flow import Flow
from emu.unicorn._steps import Steps
from images import boots, ufs
from images.build_userland import FREE, TOOLS, built, root
from images.distribution_set import make_root
from images.recordings import played
from images.shell import CommandError, at_system_call, run_command, with_program, with_userland
from images.ufs import File
from kinst.probes.breakpoints import Breakpoints
from kinst.providers import kinst_provider
from tests.conftest import ARCHES, real_kernel
from tests.cutting import Cutting
from tests.images.test_fetch import txz
from tests.kinst_emu.commands.test_commands import run

SEED = int(os.environ.get("KINST_SEED") or random.SystemRandom().randrange(1 << 31))
CUTS = 500
COMMAND = ("echo one > /tmp/a; cat /tmp/a /etc/motd | wc; mkdir /tmp/d && ls /tmp | cat; sleep 2 & "
           "wait; rm /tmp/a; nothing || echo failed; false")
OUTPUT = b"2 39\r\na\r\nd/\r\nnothing: not found\r\nfailed\r\n"
LIMIT = 5_000_000_000
CHECKS = 11  # that the program has which asks for each facility from inside
# The functions through which a program enters the kernel.
ENTRIES = {"amd64": "amd64_syscall", "arm64": "do_el0_sync", "riscv64": "cpu_fetch_syscall_args"}


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return with_userland(real_kernel(request.param))


@pytest.fixture(params=[(arch, disk) for arch in ARCHES for disk in ("memory", "virtio")],
                ids=lambda param: "-".join(param), scope="module")
def attached(request):
    """Our userland on a disk that the loader puts in memory, and on one of the computer's."""
    arch, disk = request.param
    image = with_userland(real_kernel(arch))
    if disk == "memory":
        return image
    options = replace(image.options, memory_disk=None, disks=(image.options.memory_disk,))
    return replace(image, options=options)


def at_prompt(kernel):
    machine = boots.booted(kernel)
    return machine, machine.snapshot()


def said(ran):
    """Without what the kernel says meanwhile."""
    return b"".join(line for line in ran.output.splitlines(True) if not line.startswith(b"random:"))


def test_commands_give_their_output_and_their_status_and_two_runs_are_one(attached):
    machine, start = at_prompt(attached)
    digests = []
    for _ in range(2):
        machine.restore(start)
        ran = run_command(machine, COMMAND, LIMIT)
        assert (said(ran), ran.status) == (OUTPUT, 1)
        digests.append(machine.digest())
    assert digests[0] == digests[1]


def checked(ran):
    """Every check of the program went well."""
    lines = [line for line in said(ran).splitlines() if line.endswith((b": ok", b": failed"))]
    assert ran.status == 0 and len(lines) == CHECKS, ran
    assert all(line.endswith(b": ok") for line in lines), ran


def test_every_facility_works_as_a_program_sees_it_and_the_machine_is_switched_off(attached):
    machine, start = at_prompt(attached)
    digests = []
    for slow in (False, False, True):  # and exceptions in Python
        machine.restore(start)
        machine.engine.slow = slow
        checked(run_command(machine, "check", LIMIT))
        digests.append(machine.digest())
    machine.engine.slow = False
    assert len(set(digests)) == 1
    assert run_command(machine, "poweroff", 20_000_000_000).status is None


def test_a_recording_of_the_checks_is_the_same_from_twenty_positions(attached, tmp_path):
    disk = () if attached.options.memory_disk else (
        "--disk", str(attached.options.disks[0].path))
    path = tmp_path / "check.rec"
    done = run("kinst", "record", "-k", str(attached.path), *disk, "-o", str(path), "$ check")
    assert done.returncode == 0 and done.stdout.count(": ok\n") == CHECKS, done.stdout
    player = played(path)
    first, last = player.recording.start.position, player.recording.last
    random_number = random.Random(SEED)
    print(f"KINST_SEED={SEED}")
    for _ in range(20):
        player.seek(random_number.randrange(first.instructions, last.instructions))
        assert player.advance_to_end() is None and player.difference() == ""
    done = run("kinst", "replay", str(path))
    assert done.returncode == 0 and "the state matches the recording" in done.stdout


def test_what_is_written_to_a_disk_is_kept_in_its_file_when_that_is_asked_for(kernel, tmp_path):
    path = tmp_path / "disk.ufs"
    path.write_bytes(kernel.options.memory_disk.content)
    before = path.read_bytes()
    words = ("-k", str(kernel.path), "--disk", str(path))
    done = run("kinst", "run", *words, "--", "echo kept > /tmp/x; sync")
    assert done.returncode == 0 and path.read_bytes() == before
    done = run("kinst", "run", *words, "--write", "--", "echo kept > /tmp/x")
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() != before and [one.name for one in tmp_path.iterdir()] == [path.name]
    done = run("kinst", "run", *words, "--", "cat /tmp/x")
    assert done.stdout == "kept\n"
    done = run("kinst", "run", *words, "--write", "--", "echo again > /tmp/y; cat /tmp/x")
    assert (done.returncode, done.stdout) == (0, "kept\n"), done.stderr  # it was left clean
    link = tmp_path / "link"
    link.symlink_to(path)
    path.chmod(0o600)
    done = run("kinst", "run", "-k", str(kernel.path), "--disk", str(link), "--write", "--",
               "cat /tmp/y; rm /tmp/x")
    assert done.stdout == "again\n" and link.is_symlink() and path.stat().st_mode & 0o777 == 0o600
    done = run("kinst", "run", *words, "--", "ls /tmp")
    assert done.stdout == "y\n"
    before = path.read_bytes()
    done = run("kinst", "run", *words, "--write", "--limit", "1000000", "--", "sleep 100")
    assert done.returncode == 1 and "the disk images are unchanged" in done.stderr
    assert path.read_bytes() == before


def test_a_disk_that_is_full_is_the_programs_error_and_nobody_elses(attached):
    machine, _start = at_prompt(attached)
    fill = [f"cat {'/bin/ls ' * 16}> /tmp/1"]
    fill += [f"cat /tmp/{i} /tmp/{i} > /tmp/{i + 1}" for i in range(1, 6)]
    ran = run_command(machine, "; ".join((*fill, "echo over")), LIMIT)
    assert b"write: No space left on device" in ran.output and ran.output.endswith(b"over\r\n")


def test_errors_are_told_in_words_and_ls_l_tells_what_a_file_is(attached):
    machine, _start = at_prompt(attached)
    ran = run_command(
        machine, "mkdir /tmp; cat /nowhere; ls -l /etc/motd /dev/console; ls /etc/motd", LIMIT)
    lines = ran.output.decode().splitlines()
    assert lines[0] == "/tmp: File exists" and lines[1] == "/nowhere: No such file or directory"
    date = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d"
    assert re.fullmatch(rf"-rw-r--r-- +1 0 0 +35 {date} /etc/motd", lines[2])
    assert lines[3].startswith("crw") and lines[4:] == ["/etc/motd"]


def test_a_file_of_c_has_the_usual_names_with_and_without_the_usual_headers(attached, tmp_path):
    body = """
int main(int argc, char **argv)
{
    struct stat s;
    char line[64];
    int ends[2], status, file = open("/etc/motd", O_RDONLY);
    ssize_t n = read(file, line, sizeof(line));
    printf("%zd [%5d] [%-4d] [%04x] %s\\n", n, -42, 7, 255, argv[argc - 1]);
    if (open("/nowhere", O_RDONLY) < 0 && errno == ENOENT)
        perror("/nowhere");
    if (stat("/etc/motd", &s) == 0 && S_ISREG(s.st_mode))
        printf("%ld\\n", (long)s.st_size);
    pipe(ends);
    if (fork() == 0) {
        write(ends[1], "piped", 5);
        exit(7);
    }
    wait(&status);
    n = read(ends[0], line, sizeof(line));
    char *kept = malloc((size_t)n + 1);
    memcpy(kept, line, (size_t)n);
    kept[n] = '\\0';
    puts(kept);
    return WEXITSTATUS(status);
}
"""
    usual = "".join(f"#include <{name}.h>\n" for name in (
        "errno", "fcntl", "stdio", "stdlib", "string", "sys/stat", "sys/wait", "unistd"))
    for number, headers in enumerate(("", usual)):
        source = tmp_path / f"usual{number}.c"
        source.write_text(headers + body)
        ran = run("kinst", "run", "-k", str(attached.path), str(source), "one")
        assert ran.returncode == 7, ran.stderr
        assert ran.stdout.splitlines() == [
            "35 [  -42] [7   ] [00ff] one", "/nowhere: No such file or directory", "35", "piped"]


def test_printf_of_our_headers_prints_what_a_c_library_prints(attached, tmp_path):
    calls = ['"%.3d|%s", 5, "x"', '"%5.1s|%d", "abc", 7', '"%o %X %x", 8, 255, 255',
             '"%hd %hhd %hu", 70000, 300, -1', '"[%*d] [%-*d] [%.*s]", 5, 42, 4, 7, 2, "abc"',
             '"%5s|%-5s|%c|%%", "ab", "cd", 65', '"%ld %lu %zu %lld", -5L, 5UL, (size_t)9, -1LL',
             '"%08.3d|%08d|%+s", 42, -42, "s"', '"%.0d|%d|%u", 0, 0, 4000000000u']
    calls[7] = '"%8.3d|%08d|%s", 42, -42, "s"'
    body = "".join(f'\tprintf({call});\n\tprintf("\\n");\n' for call in calls)
    ours, host = tmp_path / "ours.c", tmp_path / "host.c"
    ours.write_text(f"int main(void)\n{{\n{body}\treturn 0;\n}}\n")
    host.write_text(f"#include <stdio.h>\nint main(void)\n{{\n{body}\treturn 0;\n}}\n")
    subprocess.run(["gcc", "-w", "-o", tmp_path / "host", host], check=True)
    wanted = subprocess.run([tmp_path / "host"], check=True, capture_output=True, text=True).stdout
    ran = run("kinst", "run", "-k", str(attached.path), str(ours))
    assert (ran.returncode, ran.stdout) == (0, wanted), ran.stderr


def test_a_file_of_c_that_mixes_both_ways_is_told_what_to_do(attached, tmp_path):
    source = tmp_path / "mixed.c"
    source.write_text('#include "system.h"\nint main(void) { return open("/tmp", 0); }\n')
    ran = run("kinst", "run", "-k", str(attached.path), str(source))
    assert ran.returncode == 1 and "Without this header, open(), printf()" in ran.stderr


def test_a_command_cut_at_500_points_is_the_command_in_one_piece(attached, tmp_path):
    kernel = attached
    machine, start = at_prompt(kernel)
    begin = machine.instructions
    checked(run_command(machine, "check", LIMIT))
    end, digest = machine.instructions, machine.digest()
    machine.restore(start)
    print(f"KINST_SEED={SEED}")
    found = [f for f in kernel.symbols.functions() if f.size > 8]
    choice = random.Random(SEED).sample(found, 300)
    choice += [machine.symbol(name) for name in ("vm_fault", "exit1", "fork1", "sys_pipe2",
                                                 ENTRIES[machine.arch.name])
               if kernel.symbols.find(name) is not None]
    cut = Cutting(machine, SEED, max(1, (end - begin) // (CUTS + 100)), choice, tmp_path)
    cut.machine.type(b"check\r")
    cut.run(Until(instructions=end))
    print(cut.cuts)
    assert cut.machine.digest() == digest
    assert sum(cut.cuts.values()) >= CUTS * 0.8


@pytest.mark.parametrize("path", ["direct", "guest"])
def test_probes_where_programs_enter_the_kernel_change_nothing(kernel, path):
    machine, start = at_prompt(kernel)
    checked(run_command(machine, "check", LIMIT))
    digest = machine.digest()
    machine.restore(start)
    breakpoints = Breakpoints(machine, path=path)
    for name in ("vm_fault", "exit1", "spinlock_enter", "memcpy", "memcpy_std",
                 ENTRIES[machine.arch.name]):
        symbol = kernel.symbols.find(name)
        if symbol is not None and symbol.kind == STT_FUNC:
            kinst_provider.create(breakpoints, name, "")
    breakpoints.enable()
    ran = run_command(machine, "check", LIMIT)
    fired = breakpoints.dispatcher.firings
    breakpoints.disable()
    checked(ran)
    assert machine.digest() == digest and fired > 100_000


def test_a_program_that_never_ends_is_given_up_and_the_machine_goes_on(kernel):
    machine, _start = at_prompt(kernel)
    with pytest.raises(CommandError, match="has not ended after 50,000,000 instructions"):
        run_command(machine, "sleep 1000000", 50_000_000)
    machine.type(b"\x03")
    prompt = machine.guest.boot.shell_prompt
    assert machine.run(Until(console=prompt, instructions=machine.instructions
                             + LIMIT)).reason is StopReason.CONSOLE
    assert run_command(machine, "echo $?", LIMIT).status == 0


SCRIPT = ("fbt::sys_pipe2:entry, fbt::sys_fork:entry { @[execname, probefunc] = count(); } "
          "fbt::exec_copyin_args:entry { printf(\"%s\\n\", copyinstr(arg1)); }")


def test_a_d_program_counts_what_programs_ask_for_and_the_digest_stays(kernel):
    words = ("-k", str(kernel.path), "-q", "--digest")
    traced = run("kdtrace", *words, "-n", SCRIPT, "-c", "$ cat /etc/motd | wc; false")
    assert traced.returncode == 0, traced.stderr
    lines = [line.split() for line in traced.stdout.splitlines() if line]
    for line in (["/bin/cat"], ["/bin/wc"], ["/bin/false"], ["1", "35"],
                 ["init", "sys_fork", "3"], ["init", "sys_pipe2", "1"]):
        assert line in lines, traced.stdout
    plain = run("kinst", "run", "-k", str(kernel.path), "--digest", "--",
                "cat /etc/motd | wc; false")
    assert plain.returncode == 1 and plain.stdout.splitlines()[-1].split() == lines[-1]


ON_CPU = """
syscall::getpid:entry { self->ran = vtimestamp; self->on = self->began = timestamp; self->sum = 0; }
sched:::off-cpu /self->ran/ { self->sum += timestamp - self->on; }
sched:::on-cpu /self->ran/ { self->on = timestamp; }
syscall::nanosleep:return /self->ran/ {
    printf("%d %d %d\\n", vtimestamp - self->ran, self->sum + timestamp - self->on,
           timestamp - self->began);
}"""


@pytest.mark.parametrize("options", [(), ("--cpus", "2")], ids=["one", "two"])
def test_vtimestamp_is_the_time_between_on_cpu_and_off_cpu_and_the_switches(kernel, options):
    done = run("kdtrace", "-k", str(kernel.path), "-q", *options, "-n", ON_CPU, "-c", "$ sleep 1")
    assert done.returncode == 0, done.stderr
    ran, between, passed = map(int, done.stdout.split())
    # A tick of riscv64's counter is 100 ns.
    assert passed > 10**9 and 0 < between <= ran + 500 < between + 2_000


STEPS = """
sched:::off-cpu { self->ran = vtimestamp; }
sched:::on-cpu /self->ran/ { @steps[vtimestamp >= self->ran] = count();
                             @longest = max(vtimestamp - self->ran); }"""


@pytest.mark.parametrize("options", [(), ("--cpus", "2")], ids=["one", "two"])
def test_vtimestamp_of_a_thread_never_goes_back(kernel, options):
    done = run("kdtrace", "-k", str(kernel.path), "-q", *options, "-n", STEPS, "-c",
               "$ sleep 1; work calls 50")
    assert done.returncode == 0 and not done.stderr.count("error"), done.stderr
    numbers = [int(word) for word in done.stdout.split() if word.isdigit()]
    steps, longest = numbers[:-1], numbers[-1]
    assert steps[0] == 1 and len(steps) == 2 and steps[1] > 50 and longest < 10**6


def test_vtimestamp_by_a_counter_that_is_not_the_machines_is_an_error(kernel, tmp_path):
    if kernel.machine != "X86_64":
        pytest.skip("only amd64 has another counter that GENERIC can be told to use")
    made = run("kinst", "record", "-k", str(kernel.path), "--env", "machdep.disable_tsc=1", "-o",
               str(tmp_path / "run"), "$ true")
    assert made.returncode == 0, made.stderr
    done = run("kdtrace", "--replay", str(tmp_path / "run"), "-k", str(kernel.path), "-q", "-n",
               "fbt::sys__exit:entry { trace(vtimestamp); }")
    assert "illegal operation in action #1" in done.stderr


def test_vtimestamp_of_a_program_stands_still_while_it_sleeps(kernel):
    done = run("kdtrace", "-k", str(kernel.path), "-q", "-n",
               "pid$target::main:entry { self->ran = vtimestamp; self->began = timestamp; } "
               'pid$target::main:return { printf("%d %d\\n", vtimestamp - self->ran, '
               "timestamp - self->began); }", "-c", "$ sleep 1")
    assert done.returncode == 0, done.stderr
    ran, passed = map(int, done.stdout.split())
    assert passed > 10**9 and 1_000 < ran < 100_000


def test_vtimestamp_is_refused_on_qemu_and_not_guessed(kernel):
    done = run("kdtrace", "-k", str(kernel.path), "--machine", "qemu", "-q", "-n",
               "fbt::strlen:entry { trace(vtimestamp); }", "-c", 'strlen("abc")')
    assert "variables not available: vtimestamp (" in done.stderr
    assert "illegal operation in action #1" in done.stderr
    assert not done.stdout.strip()


def test_target_is_the_process_that_the_shell_makes_first(kernel):
    script = ('fbt::exec_copyin_args:entry /pid == $target/ { printf("%s\\n", copyinstr(arg1)); }')
    done = run("kdtrace", "-k", str(kernel.path), "-q", "-n", script, "-c",
               "$ cat /etc/motd | wc; ls /nothing")
    assert done.returncode == 0, done.stderr
    assert "/bin/cat" in done.stdout.split() and "/bin/wc" not in done.stdout
    assert "/bin/ls" not in done.stdout


def test_a_process_is_named_for_its_program_and_a_failure_is_told(kernel):
    done = run("kdtrace", "-k", str(kernel.path), "-n",
               "fbt::vm_fault:entry { @[execname] = count(); }", "-c", "$ wc < /etc/motd; false")
    assert done.returncode == 0 and "exited with status 1" in done.stderr
    assert {"wc", "init"} <= {line.split()[0] for line in done.stdout.splitlines() if line}


def test_files_of_the_host_are_run_and_what_does_not_go_together_is_refused(kernel, tmp_path):
    (tmp_path / "prog").write_bytes(
        kernel.options.memory_disk.path.with_name("shell").read_bytes())
    (tmp_path / "prog").chmod(0o755)
    done = run("kdtrace", "-k", str(kernel.path), "-q", "-n", "BEGIN { }", "--files", str(tmp_path),
               "-c", "$ /files/prog -c 'echo from outside'")
    assert done.returncode == 0 and "from outside" in done.stdout
    for words, says in ((("--files", str(tmp_path), "-c", 'strlen("a")'), "--files"),
                        (("--machine", "qemu", "-c", "$ ls"), "--machine qemu"),
                        (("-c", "$"), "a command must be one line")):
        done = run("kdtrace", "-k", str(kernel.path), "-n", "BEGIN { }", *words)
        assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr


PROGRAM = """#include "system.h"

int
main(int argc, char **argv, char **environment)
{
	(void)environment;
	print(1, "%s of %d\\n", argv[1], argc - 1);
	return (argc);
}
"""


def test_a_file_of_c_is_compiled_and_run(kernel, tmp_path):
    (tmp_path / "prog.c").write_text(PROGRAM)
    words = ("kinst", "run", "-k", str(kernel.path), str(tmp_path / "prog.c"))
    done = run(*words, "one", "two")
    assert (done.stdout, done.returncode) == ("one of 2\n", 3), done.stderr
    assert run(*words, "a b; c", "'").stdout == "a b; c of 2\n"
    (tmp_path / "prog.c").write_text(
        '#include "system.h"\nint main(int argc, char **argv) { (void)argv; return argc + 6; }')
    assert run(*words).returncode == 7
    disk = str(kernel.options.memory_disk.path)
    done = run("kinst", "run", "-k", str(kernel.path), "--disk", disk, str(tmp_path / "prog.c"))
    assert done.returncode == 1 and "leave out --disk" in done.stderr
    (tmp_path / "prog.c").write_text("int main(void) { return nothing; }")
    done = run(*words)
    assert done.returncode == 1 and "prog.c:1:25: error" in done.stderr
    assert "Traceback" not in done.stderr


def test_python_gives_commands_to_a_machine_with_our_userland(kernel):
    machine = kinst_emu.open(kernel.path, userland=True).boot()
    with machine.probe("fbt::sys_read:entry") as probes:
        ran = machine.command("cat /etc/motd | wc")
    assert ran.output == b"1 35\r\n" and ran.status == 0 and probes.count > 1
    with pytest.raises(kinst_emu.KinstError, match="not at the kinst-emu shell"):
        kinst_emu.open(kernel.path).boot().command("ls")


def test_switching_off_ends_the_machine(kernel):
    machine, _start = at_prompt(kernel)
    ran = run_command(machine, "poweroff", 20_000_000_000)
    assert ran.status is None and b"Uptime: " in ran.output


def test_a_state_in_user_mode_is_saved_and_goes_on(kernel, tmp_path):
    machine, start = at_prompt(kernel)
    run_command(machine, "cat /etc/motd | wc", LIMIT)
    end, digest = machine.instructions, machine.digest()
    machine.restore(start)
    machine.type(b"cat /etc/motd | wc\r")
    while machine.pc >> 40:  # a program of ours lies in the first GiBs
        machine.run(Until(instructions=machine.instructions + 997))
        assert machine.instructions < end, "no program was met"
    snapshot.save(machine, tmp_path / "s")
    in_user_mode = machine.snapshot()
    machine.restore(start)  # the privilege level goes with the state, in both directions
    assert run_command(machine, "cat /etc/motd | wc", LIMIT).status == 0
    assert machine.digest() == digest
    machine.restore(in_user_mode)
    for one in (machine, snapshot.restore(tmp_path / "s", kernel)):
        one.run(Until(console=machine.guest.boot.shell_prompt))
        assert (one.instructions, one.digest()) == (end, digest)


def test_a_disk_that_is_damaged_is_told_in_a_line(kernel, tmp_path):
    path = tmp_path / "root.ufs"
    path.write_bytes(bytes(1 << 20))
    for option in ("--memory-disk", "--disk"):
        done = run("kinst", "run", "-k", str(kernel.path), option, str(path), "--", "ls")
        assert done.returncode == 1 and "cannot mount ufs:/dev/" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("files", "says"), [
    ({"bin/nothing": File(b"")}, "no init"),
    ({"sbin/init": File(b"\x7fELF" + bytes(60), 0o100755)}, "no init"),
])
def test_a_disk_without_a_first_program_is_told_in_a_line(kernel, tmp_path, files, says):
    path = tmp_path / "root.ufs"
    path.write_bytes(ufs.image(ufs.tree(files | {"dev": ufs.Folder()})))
    done = run("kinst", "run", "-k", str(kernel.path), "--memory-disk", str(path), "--", "ls")
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr


def test_a_program_for_another_architecture_is_refused_by_name(kernel):
    machine = kernel.machine
    other = {"X86_64": "arm64", "AARCH64": "riscv64", "RISCV": "amd64"}[machine]
    foreign = with_userland(real_kernel(other)).options.memory_disk.path.with_name("shell")
    ours = kernel.options.memory_disk.path.with_name("shell")
    tree = root(built(ours.parent))
    tree.entries["foreign"] = File(foreign.read_bytes(), 0o100755)
    disk = DiskImage(ours, memoryview(ufs.image(tree, FREE)))
    image = replace(kernel, options=replace(kernel.options, memory_disk=disk))
    ran = run_command(boots.booted(image), "/foreign", LIMIT)
    assert ran.status == 126 and b"not a program for this machine" in ran.output


def test_stacks_of_programs_have_their_functions(kernel):
    program = ('fbt::sys_open:entry /execname == "cat"/ { ustack(); printf("%d %x", ustackdepth, '
               'ucaller); } fbt::sys_read:entry /execname == "cat"/ { @[ustack(2)] = count(); }')
    done = run("kdtrace", "-k", str(kernel.path), "-qn", program, "-c", "$ cat /etc/motd")
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    at = next(n for n, line in enumerate(lines) if line.startswith("cat`cat+0x"))
    assert lines[at + 1].startswith("cat`main+0x") and lines[at + 2].startswith("cat`_start+0x")
    assert lines[at + 3].startswith("3 ")
    assert lines[-3].startswith("cat`copy+0x") and lines[-2].startswith("cat`cat+0x")
    assert lines[-1] == "1"


def test_where_a_programs_values_came_from_and_who_wrote_its_memory(kernel, tmp_path):
    """The path that `cat` opens: from the system call through its own code to where the kernel put
    its arguments; and its buffer, which the kernel filled."""
    path = str(tmp_path / "cat.rec")
    assert run("kinst", "record", "-q", "-k", str(kernel.path), "-o", path,
               "$ cat /etc/motd").returncode == 0
    program = ('fbt::openatfp:entry /execname == "cat"/ { printf("path %x\\n", arg2); } '
               'fbt::sys_write:entry /execname == "cat"/ { printf("write %x %d\\n", '
               '(uintptr_t)args[1]->buf, pid); }')
    said = dict(re.findall(r"^(path|write) ([0-9a-f]+)", run(
        "kdtrace", "--replay", path, "-qn", program).stdout, re.M))
    register = {"X86_64": "rdx", "AARCH64": "x2", "RISCV": "a2"}[kernel.machine]
    done = run("kinst", "replay", path, "--origin", f"{register}@openatfp", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["value"] == int(said["path"], 16)
    own = [n for n, link in enumerate(found["links"]) if "cat`cat+0x" in link["at"]]
    assert own and "(pid 16)" in found["links"][own[0]]["at"]
    assert found["links"][own[0]]["instruction"]
    assert "exec_copyout_strings" in found["links"][-1]["at"]
    where = f"0x{said['write']}:8"
    for nth in range(1, 4):  # the shell writes, too
        done = run("kinst", "replay", path, "--who-wrote", where, "--process", "16", "--before",
                   f"sys_write#{nth}", "--json")
        if done.returncode == 0 and json.loads(done.stdout)["writes"]:
            break
    (last, *_more) = json.loads(done.stdout)["writes"]
    assert last["by"].startswith(("copy", "memmove", "memcpy")), last
    done = run("kinst", "replay", path, "--who-wrote", where, "--process", "16")
    assert done.returncode == 1 and "process 16 does not exist" in done.stderr
    done = run("kinst", "replay", path, "--memory", where, "--process", "no")
    assert done.returncode == 1 and "--process" in done.stderr


COUNTERS = r"""
#include "system.h"
#if defined(__x86_64__)
#define READ(v) __asm__ volatile("rdtsc" : "=a"(v) : : "rdx")
#elif defined(__aarch64__)
#define READ(v) __asm__ volatile("mrs %0, cntvct_el0" : "=r"(v))
#else
#define READ(v) do { unsigned long w; __asm__ volatile("rdcycle %0\n\tnop\n\trdinstret %1" \
    : "=r"(v), "=r"(w)); v = v * 31 + w; } while (0)
#endif
int
main(int argc, char **argv, char **environment)
{
	unsigned long sum = 0, one;

	(void)argc, (void)argv, (void)environment;
	for (int i = 0; i < 500; i++) {
		READ(one);
		sum = sum * 31 + one;
	}
	print(1, "%lx\n", sum);
	return (0);
}
"""


def test_the_counters_that_a_program_reads_are_virtual(kernel, tmp_path):
    source = tmp_path / "counters.c"
    source.write_text(COUNTERS)
    machine, start = at_prompt(with_program(kernel, source))
    begin = machine.instructions
    plain = run_command(machine, "/files/counters", LIMIT), machine.digest()
    end = machine.instructions
    machine.restore(start)
    assert (run_command(machine, "/files/counters", LIMIT), machine.digest()) == plain
    machine.restore(start)
    print(f"KINST_SEED={SEED}")
    found = [f for f in kernel.symbols.functions() if f.size > 8]
    cut = Cutting(machine, SEED, (end - begin) // 100, random.Random(SEED).sample(found, 50),
                  tmp_path)
    cut.machine.type(b"/files/counters\r")
    cut.run(Until(instructions=end))
    assert cut.machine.digest() == plain[1] and sum(cut.cuts.values()) > 50


def test_what_looked_at_instructions_leaves_nothing_behind_in_a_program(kernel):
    """Unicorn's own way to forget a hook looks the code up as the program would."""
    machine = boots.booted(kernel)
    at_system_call(machine)
    begin = machine.snapshot()
    states = []
    for looking in (False, True):
        machine.restore(begin)
        flow = Flow(machine.engine, bytes) if looking else None
        seen = Steps(machine.engine, bytes, range(1, 4)) if looking else None
        machine.run(Until(instructions=machine.instructions + 3000))
        while machine.pc >> 63:
            machine.step()
        if flow is not None and seen is not None:
            flow.close()
            seen.close()
        states.append((machine.instructions, machine.cpu.state()))
    assert states[0] == states[1]


@pytest.fixture
def fetched(kernel, tmp_path, monkeypatch):
    """A kernel with a base system beside it, as ``kinst images fetch --base`` leaves them: a small
    set of ours."""
    arch = kernel.options.memory_disk.path.parent.name
    folder = tmp_path / "images" / "15.0-RELEASE" / arch
    folder.mkdir(parents=True)
    (folder / "kernel").symlink_to(kernel.path)
    ours = built(kernel.options.memory_disk.path.parent)
    archive = tmp_path / "base.txz"
    archive.write_bytes(txz({
        "./dev": None, "./tmp": None, "./sbin/init": ours["shell"], "./bin/check": ours["check"],
        "./etc/motd": b"words",
    }, [(f"./bin/{tool}", tarfile.LNKTYPE, "./sbin/init") for tool in TOOLS]))
    make_root(archive, folder / "root.ufs", folder / "base", lambda *said: None)
    monkeypatch.setenv("KINST_DATA", str(tmp_path))
    return f"15.0-RELEASE/{arch}"


def test_a_base_system_is_booted_to_its_shell(fetched, tmp_path):
    done = run("kinst", "boot", "-k", fetched, "--base", "--type", r"cat /dev/null && check\r")
    assert done.returncode == 0 and done.stdout.count(": ok") == CHECKS, done.stderr
    for words, says in ((["--base", "--write"], "is never changed"),
                        (["--base", "--disk", str(tmp_path / "no")], "no: cannot be read")):
        done = run("kinst", "boot", "-k", fetched, *words)
        assert done.returncode == 1 and says in done.stderr and done.stderr.count("\n") == 1
    done = run("kinst", "run", "-k", fetched, "--base", "--files", str(tmp_path), "--", "ls")
    assert done.returncode == 1 and "leave out --disk" in done.stderr


def test_a_base_system_that_was_not_fetched_is_told_in_a_line(kernel):
    done = run("kinst", "boot", "-k", str(kernel.path), "--base")
    assert done.returncode == 1 and "kinst images fetch RELEASE/ARCH --base" in done.stderr
    assert done.stderr.count("\n") == 1
