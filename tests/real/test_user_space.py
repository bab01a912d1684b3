"""Tests of FreeBSD GENERIC kernels that run the programs of kinst-emu's userland.

$KINST_SEED repeats the random choices of a failed run.
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
from images import boots, catalog, ufs
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
CHECKS = 11  # number of checks in the test program `check`, one for each facility of the kernel
# The functions through which a program enters the kernel.
ENTRIES = {"amd64": "amd64_syscall", "arm64": "do_el0_sync", "riscv64": "cpu_fetch_syscall_args"}


def alone(image, folder):
    """Return a kernel without the base system that may be next to it, linked into a folder."""
    for one in image.path.parent.iterdir():
        if one.name not in (catalog.ROOT_FILE, catalog.HEADERS):
            (folder / one.name).symlink_to(one)
    return catalog.find(str(folder / image.path.name))


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request, tmp_path_factory):
    return with_userland(alone(real_kernel(request.param), tmp_path_factory.mktemp("alone")))


@pytest.fixture(params=[(arch, disk) for arch in ARCHES for disk in ("memory", "virtio")],
                ids=lambda param: "-".join(param), scope="module")
def attached(request, tmp_path_factory):
    """Return a kernel with kinst-emu's userland on a memory disk or on a virtio disk."""
    arch, disk = request.param
    image = with_userland(alone(real_kernel(arch), tmp_path_factory.mktemp("alone")))
    if disk == "memory":
        return image
    options = replace(image.options, memory_disk=None, disks=(image.options.memory_disk,))
    return replace(image, options=options)


def at_prompt(kernel):
    machine = boots.booted(kernel)
    return machine, machine.snapshot()


def said(ran):
    """Return a command's output without kernel messages."""
    return b"".join(line for line in ran.output.splitlines(True) if not line.startswith(b"random:"))


def test_commands_return_output_and_status_and_two_runs_are_equal(attached):
    machine, start = at_prompt(attached)
    digests = []
    for _ in range(2):
        machine.restore(start)
        ran = run_command(machine, COMMAND, LIMIT)
        assert (said(ran), ran.status) == (OUTPUT, 1)
        digests.append(machine.digest())
    assert digests[0] == digests[1]


def checked(ran):
    """Assert that every check of the test program passed."""
    lines = [line for line in said(ran).splitlines() if line.endswith((b": ok", b": failed"))]
    assert ran.status == 0 and len(lines) == CHECKS, ran
    assert all(line.endswith(b": ok") for line in lines), ran


def test_every_check_of_the_test_program_passes_and_poweroff_works(attached):
    machine, start = at_prompt(attached)
    digests = []
    for slow in (False, False, True):  # the slow path handles exceptions in Python
        machine.restore(start)
        machine.engine.slow = slow
        checked(run_command(machine, "check", LIMIT))
        digests.append(machine.digest())
    machine.engine.slow = False
    assert len(set(digests)) == 1
    assert run_command(machine, "poweroff", 20_000_000_000).status is None


def test_a_recording_of_the_checks_replays_from_twenty_positions(attached, tmp_path):
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


def test_the_option_write_saves_changes_to_the_disk_image(kernel, tmp_path):
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
    # The disk was unmounted cleanly.
    assert (done.returncode, done.stdout) == (0, "kept\n"), done.stderr
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


def test_a_full_disk_is_an_error_of_the_guest_program_only(attached):
    machine, _start = at_prompt(attached)
    fill = [f"cat {'/bin/ls ' * 16}> /tmp/1"]
    fill += [f"cat /tmp/{i} /tmp/{i} > /tmp/{i + 1}" for i in range(1, 6)]
    ran = run_command(machine, "; ".join((*fill, "echo over")), LIMIT)
    assert b"write: No space left on device" in ran.output and ran.output.endswith(b"over\r\n")


def test_programs_print_error_texts_and_ls_l_prints_file_attributes(attached):
    machine, _start = at_prompt(attached)
    ran = run_command(
        machine, "mkdir /tmp; cat /nowhere; ls -l /etc/motd /dev/console; ls /etc/motd", LIMIT)
    lines = ran.output.decode().splitlines()
    assert lines[0] == "/tmp: File exists" and lines[1] == "/nowhere: No such file or directory"
    date = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d"
    assert re.fullmatch(rf"-rw-r--r-- +1 0 0 +35 {date} /etc/motd", lines[2])
    assert lines[3].startswith("crw") and lines[4:] == ["/etc/motd"]


def test_a_c_file_can_use_libc_functions_with_and_without_headers(attached, tmp_path):
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


def test_our_printf_prints_the_same_as_the_hosts_c_library(attached, tmp_path):
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


def test_a_c_file_that_mixes_both_interfaces_causes_an_error_with_advice(attached, tmp_path):
    source = tmp_path / "mixed.c"
    source.write_text('#include "system.h"\nint main(void) { return open("/tmp", 0); }\n')
    ran = run("kinst", "run", "-k", str(attached.path), str(source))
    assert ran.returncode == 1 and "Without this header, open(), printf()" in ran.stderr


def test_a_command_cut_at_500_points_ends_like_an_uncut_command(attached, tmp_path):
    kernel = attached
    machine, start = at_prompt(kernel)
    begin = machine.instructions
    checked(run_command(machine, "check", LIMIT))
    end, digest = machine.instructions, machine.digest()
    machine.restore(start)
    print(f"KINST_SEED={SEED}")
    functions = [f for f in kernel.symbols.functions() if f.size > 8]
    choice = random.Random(SEED).sample(functions, 300)
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


def test_a_command_that_never_ends_is_abandoned_and_the_machine_still_works(kernel):
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


def test_a_d_program_counts_system_calls_without_changing_the_digest(kernel):
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
def test_vtimestamp_is_the_time_on_the_cpu_including_context_switches(kernel, options):
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


def test_vtimestamp_is_an_error_if_the_kernel_does_not_use_the_tsc(kernel, tmp_path):
    if kernel.machine != "X86_64":
        pytest.skip("only amd64 has another time counter that GENERIC can use")
    result = run("kinst", "record", "-k", str(kernel.path), "--env", "machdep.disable_tsc=1", "-o",
               str(tmp_path / "run"), "$ true")
    assert result.returncode == 0, result.stderr
    done = run("kdtrace", "--replay", str(tmp_path / "run"), "-k", str(kernel.path), "-q", "-n",
               "fbt::sys__exit:entry { trace(vtimestamp); }")
    assert "illegal operation in action #1" in done.stderr


def test_vtimestamp_of_a_program_stops_while_it_sleeps(kernel):
    done = run("kdtrace", "-k", str(kernel.path), "-q", "-n",
               "pid$target::main:entry { self->ran = vtimestamp; self->began = timestamp; } "
               'pid$target::main:return { printf("%d %d\\n", vtimestamp - self->ran, '
               "timestamp - self->began); }", "-c", "$ sleep 1")
    assert done.returncode == 0, done.stderr
    ran, passed = map(int, done.stdout.split())
    assert passed > 10**9 and 1_000 < ran < 100_000


def test_vtimestamp_is_an_error_on_qemu(kernel):
    done = run("kdtrace", "-k", str(kernel.path), "--machine", "qemu", "-q", "-n",
               "fbt::strlen:entry { trace(vtimestamp); }", "-c", 'strlen("abc")')
    assert "variables not available: vtimestamp (" in done.stderr
    assert "illegal operation in action #1" in done.stderr
    assert not done.stdout.strip()


def test_target_is_the_process_that_the_shell_creates_first(kernel):
    script = ('fbt::exec_copyin_args:entry /pid == $target/ { printf("%s\\n", copyinstr(arg1)); }')
    done = run("kdtrace", "-k", str(kernel.path), "-q", "-n", script, "-c",
               "$ cat /etc/motd | wc; ls /nothing")
    assert done.returncode == 0, done.stderr
    assert "/bin/cat" in done.stdout.split() and "/bin/wc" not in done.stdout
    assert "/bin/ls" not in done.stdout


def test_execname_is_the_program_and_a_failed_command_is_reported(kernel):
    done = run("kdtrace", "-k", str(kernel.path), "-n",
               "fbt::vm_fault:entry { @[execname] = count(); }", "-c", "$ wc < /etc/motd; false")
    assert done.returncode == 0 and "exited with status 1" in done.stderr
    assert {"wc", "init"} <= {line.split()[0] for line in done.stdout.splitlines() if line}


def test_host_files_are_run_and_conflicting_options_are_refused(kernel, tmp_path):
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


def test_a_c_file_is_compiled_and_run(kernel, tmp_path):
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
    assert done.returncode == 1 and "cannot mount a second disk" in done.stderr
    (tmp_path / "prog.c").write_text("int main(void) { return nothing; }")
    done = run(*words)
    assert done.returncode == 1 and "prog.c:1:25: error" in done.stderr
    assert "Traceback" not in done.stderr


def test_python_runs_commands_on_a_machine_with_our_userland(kernel):
    machine = kinst_emu.open(kernel.path, userland=True).boot()
    with machine.probe("fbt::sys_read:entry") as probes:
        ran = machine.command("cat /etc/motd | wc")
    assert ran.output == b"1 35\r\n" and ran.status == 0 and probes.count > 1
    with pytest.raises(kinst_emu.KinstError, match="is not at a shell's prompt"):
        kinst_emu.open(kernel.path).boot().command("ls")


def test_poweroff_ends_the_machine(kernel):
    machine, _start = at_prompt(kernel)
    ran = run_command(machine, "poweroff", 20_000_000_000)
    assert ran.status is None and b"Uptime: " in ran.output


def test_a_snapshot_in_user_mode_is_saved_and_restored(kernel, tmp_path):
    machine, start = at_prompt(kernel)
    run_command(machine, "cat /etc/motd | wc", LIMIT)
    end, digest = machine.instructions, machine.digest()
    machine.restore(start)
    machine.type(b"cat /etc/motd | wc\r")
    while machine.pc >> 40:  # run until a program executes; programs have low addresses
        machine.run(Until(instructions=machine.instructions + 997))
        assert machine.instructions < end, "the command ended without a stop in user mode"
    snapshot.save(machine, tmp_path / "s")
    in_user_mode = machine.snapshot()
    machine.restore(start)  # the privilege level is restored, too
    assert run_command(machine, "cat /etc/motd | wc", LIMIT).status == 0
    assert machine.digest() == digest
    machine.restore(in_user_mode)
    for one in (machine, snapshot.restore(tmp_path / "s", kernel)):
        one.run(Until(console=machine.guest.boot.shell_prompt))
        assert (one.instructions, one.digest()) == (end, digest)


def test_a_damaged_disk_causes_an_error_without_a_traceback(kernel, tmp_path):
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
def test_a_disk_without_init_causes_an_error_without_a_traceback(kernel, tmp_path, files, says):
    path = tmp_path / "root.ufs"
    path.write_bytes(ufs.image(ufs.tree(files | {"dev": ufs.Folder()})))
    done = run("kinst", "run", "-k", str(kernel.path), "--memory-disk", str(path), "--", "ls")
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr


def test_a_program_for_another_architecture_is_refused(kernel):
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


def test_user_stacks_show_function_names(kernel):
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


def test_origin_and_who_wrote_follow_values_through_a_program(kernel, tmp_path):
    """Trace `cat`'s path argument and buffer contents back to their origins.

    The path leads through the program's code to the kernel function that stored the program's
    arguments; the kernel has filled the buffer.
    """
    path = str(tmp_path / "cat.rec")
    assert run("kinst", "record", "-q", "-k", str(kernel.path), "-o", path,
               "$ cat /etc/motd").returncode == 0
    program = ('fbt::openatfp:entry /execname == "cat"/ { printf("path %x\\n", arg2); } '
               'fbt::sys_write:entry /execname == "cat"/ { printf("write %x %d\\n", '
               '(uintptr_t)args[1]->buf, pid); }')
    addresses = dict(re.findall(r"^(path|write) ([0-9a-f]+)", run(
        "kdtrace", "--replay", path, "-qn", program).stdout, re.M))
    register = {"X86_64": "rdx", "AARCH64": "x2", "RISCV": "a2"}[kernel.machine]
    done = run("kinst", "replay", path, "--origin", f"{register}@openatfp", "--json")
    assert done.returncode == 0, done.stderr
    origin = json.loads(done.stdout)
    assert origin["value"] == int(addresses["path"], 16)
    own = [n for n, link in enumerate(origin["links"]) if "cat`cat+0x" in link["at"]]
    assert own and "(pid 16)" in origin["links"][own[0]]["at"]
    assert origin["links"][own[0]]["instruction"]
    assert "exec_copyout_strings" in origin["links"][-1]["at"]
    where = f"0x{addresses['write']}:8"
    for nth in range(1, 4):  # the shell writes to the console, too
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


def test_cpu_counters_read_by_a_program_are_virtual(kernel, tmp_path):
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
    functions = [f for f in kernel.symbols.functions() if f.size > 8]
    cut = Cutting(machine, SEED, (end - begin) // 100, random.Random(SEED).sample(functions, 50),
                  tmp_path)
    cut.machine.type(b"/files/counters\r")
    cut.run(Until(instructions=end))
    assert cut.machine.digest() == plain[1] and sum(cut.cuts.values()) > 50


def test_removing_instruction_hooks_does_not_change_a_program(kernel):
    """When a hook is removed, Unicorn by itself looks up the code as if the program fetched it."""
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
    """Create a small base system next to a kernel, and return the kernel's name.

    The files are arranged as ``kinst images fetch --base`` does.
    """
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
    for words, says in ((["--base", "--write"], "cannot be changed"),
                        (["--base", "--disk", str(tmp_path / "no")], "no: cannot be read")):
        done = run("kinst", "boot", "-k", fetched, *words)
        assert done.returncode == 1 and says in done.stderr and done.stderr.count("\n") == 1
    done = run("kinst", "run", "-k", fetched, "--base", "--files", str(tmp_path), "--", "ls")
    assert done.returncode == 1 and "cannot mount the disk with the files" in done.stderr


def test_a_missing_base_system_causes_a_one_line_error(kernel):
    done = run("kinst", "boot", "-k", str(kernel.path), "--base")
    assert done.returncode == 1 and "kinst images fetch RELEASE/ARCH --base" in done.stderr
    assert done.stderr.count("\n") == 1
