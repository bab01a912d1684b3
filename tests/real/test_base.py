"""Tests of a complete FreeBSD base system on a disk.

They need the root file system that 'kinst images fetch RELEASE/ARCH --base' makes, as root.ufs next
to the kernel.
"""

import json
import os
import random
import re
import struct
import subprocess
import sys
import uuid
import zlib
from pathlib import Path

import pytest

import kinst_emu
from dtrace.debug.kernel_types import kernel_types
from dtrace.stacks.mapped_files import mapped_files
from dtrace.stacks.threads import Threads
from dwarf.members import offset_of
from emu.guests.freebsd.partitions import FREEBSD_UFS
from emu.machine.machine import Until
from emu.unicorn.machine import UnicornMachine
from images import boots, catalog
from images.shell import run_command, with_folder
from images.systems import with_disks
from kinst_emu.cli.device_words import attached
from tests.conftest import ARCHES, real_kernel
from tests.cutting import Cutting
from tests.dtrace.run import test_libxo_output
from tests.kinst_emu.commands.test_commands import run

SEED = int(os.environ.get("KINST_SEED") or random.SystemRandom().randrange(1 << 31))
LIMIT = 5_000_000_000
CUTS = 500
PATIENCE = 1800  # maximum number of seconds of a command that boots the system
PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <dlfcn.h>

static void *
started(void *text)
{
	printf("%zu\n", strlen(text));
	return NULL;
}

int
main(int count, char **words)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, started, words[count - 1]) || pthread_join(thread, NULL))
		return 1;
	return dlsym(RTLD_DEFAULT, "printf") ? 3 : 4;
}
"""


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    """Return the path of a kernel with a base system next to it."""
    image = real_kernel(request.param)
    if not image.path.with_name(catalog.ROOT_FILE).is_file():
        pytest.skip(f"no base system for {request.param}: put the root.ufs of 'kinst images fetch "
                    f"RELEASE/ARCH --base' next to {image.path}")
    warm(str(image.path))
    return str(image.path)


def long(program, *words):
    """Run a command that takes longer than others: it boots the system, or runs the guest's dtrace.
    """
    return subprocess.run([sys.executable, "-m", f"kinst_emu.commands.{program}", *words],
                          capture_output=True, text=True, check=False, timeout=PATIENCE)


def warm(kernel, network=None, serial=False, files=None):
    """Boot the base system with the given devices, so that commands restore it from the cache."""
    image = attached(with_disks(catalog.find(kernel), [], base=True), network, None, serial)
    boots.booted(with_folder(image, files))


@pytest.fixture(scope="module")
def based(kernel):
    """Return the kernel's image with the base system as its disk."""
    return with_disks(catalog.find(kernel), [], base=True)


def test_a_command_prints_its_output_and_returns_its_status(kernel):
    result = run("kinst", "run", "-k", kernel, "--base", "--", "ls -l / | wc -l; (exit 7)")
    assert result.stdout.strip().isdecimal() and result.returncode == 7 and not result.stderr


def test_commands_follow_each_other_on_one_machine(kernel):
    machine = kinst_emu.open(kernel, base=True).boot()
    assert machine.command("cd /etc && pwd && echo one > /tmp/one").output == b"/etc\r\n"
    assert machine.command("cat /tmp/one").output == b"one\r\n"
    assert machine.command("false").status == 1
    assert machine.command("nonsense").status == 127
    assert machine.command("sh -c 'kill -9 $$'").status == 128 + 9


def test_two_processes_boot_to_the_same_state_and_probes_do_not_change_it(kernel):
    plain = [long("kinst", "boot", "-k", kernel, "--base", "-q", "--digest", "--json")
             for _ in range(2)]
    digests = {json.loads(result.stdout)["digest"] for result in plain}
    assert len(digests) == 1 and "login: " in json.loads(plain[0].stdout)["console"]
    traced = long("kdtrace", "-k", kernel, "--base", "-n", "fbt::: { @ = count(); }", "-c", "boot",
                  "--digest")
    assert traced.returncode == 0, traced.stderr
    assert f"digest {digests.pop()}" in traced.stdout
    assert int(traced.stdout.split("digest")[0].split()[-1]) > 10_000_000


def test_a_boot_to_login_that_is_cut_at_random_is_the_same(based, tmp_path):
    machine = UnicornMachine(based, boots.MEMORY)
    machine.boot()
    boots.at_start(machine)
    start, begin = machine.snapshot(), machine.instructions
    boots.boot_to_prompt(machine)
    end = machine.instructions + 1000  # the boot ends while the guest waits, before the clock moves
    machine.run(Until(instructions=end))
    digest = machine.digest()
    machine.restore(start)
    functions = [f for f in based.symbols.functions() if f.size > 8]
    print(f"KINST_SEED={SEED}")
    cut = Cutting(machine, SEED, (end - begin) // (CUTS + 100),
                  random.Random(SEED).sample(functions, 300), tmp_path, files=3)
    cut.run(Until(instructions=end))
    assert cut.machine.digest() == digest and sum(cut.cuts.values()) >= CUTS * 0.8


@pytest.mark.parametrize("static", [False, True])
def test_a_c_program_runs_dynamically_and_statically_linked(kernel, tmp_path, static):
    source = tmp_path / "prog.c"
    source.write_text(PROGRAM)
    warm(kernel, files=tmp_path)
    result = run("kinst", "run", "-k", kernel, "--base", *(["--static"] if static else []),
                 str(source), "a b c")
    assert result.stdout == "5\n" and result.returncode == (4 if static else 3), result


def frames(path):
    """Return the (EtherType, protocol) of the frames in a pcap file."""
    content, at, found = path.read_bytes(), 24, []
    while at < len(content):
        size = struct.unpack_from("<I", content, at + 8)[0]
        frame = content[at + 16 : at + 16 + size]
        found.append((frame[12:14].hex(), frame[23] if frame[12:14] == b"\x08\x00" else None))
        at += 16 + size
    return found


def test_the_guest_uses_the_network_of_the_peer(kernel, tmp_path):
    folder, out, serial = tmp_path / "web", tmp_path / "out.pcap", tmp_path / "serial"
    folder.mkdir()
    (folder / "file").write_bytes(b"from the peer\n" * 10_000)
    command = ("ifconfig vtnet0 | grep 'inet '; ping -c 1 peer | grep transmitted; "
               "fetch -qo - http://peer/file | md5; echo tcp | nc -N peer 7; "
               "echo udp | nc -u -w 1 10.0.2.2 7; echo second > /dev/cuau1; nc -z peer 22")
    warm(kernel, f"peer:{folder}", serial=True)
    result = run("kinst", "run", "-k", kernel, "--base", "--net", f"peer:{folder},{out}",
                 "--serial", str(serial), "--", command)
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines == ["inet 10.0.2.15 netmask 0xffffff00 broadcast 10.0.2.255",
                     "1 packets transmitted, 1 packets received, 0.0% packet loss",
                     "320ff51bd04795fda997988d3122730d", "tcp", "udp"], result
    assert result.returncode == 1 and serial.read_bytes() == b"second\r\n"
    kinds = set(frames(out))
    assert {("0800", 1), ("0800", 6), ("0800", 17)} <= kinds


def test_frames_from_a_file_arrive_at_the_guest(kernel, tmp_path):
    incoming = tmp_path / "in.pcap"
    frame = bytes.fromhex("ffffffffffff020000000001") + b"\x08\x06" + bytes.fromhex(
        "0001080006040001" "020000000001" "0a000203" "000000000000" "0a00020f") + bytes(18)
    incoming.write_bytes(
        struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1518, 1)
        + b"".join(struct.pack("<IIII", 1_700_000_000 + i, 0, len(frame), len(frame)) + frame
                   for i in range(3)))
    warm(kernel, "wire")
    result = run("kinst", "run", "-k", kernel, "--base", "--net", f"{incoming}", "--",
                 "ifconfig vtnet0 inet 10.0.2.15/24 up; sleep 6; arp -an | grep -c 10.0.2.3")
    assert result.stdout.splitlines()[-1].strip() == "1", result


def test_a_recording_with_a_network_replays_to_the_same_state(kernel, tmp_path):
    path = tmp_path / "net.rec"
    warm(kernel, "peer")
    result = run("kinst", "record", "-k", kernel, "--base", "--net", "peer", "-o", str(path),
                 "$ ping -c 2 peer | grep -c ttl=")
    assert result.stdout.splitlines()[0].strip() == "2", result
    assert path.stat().st_size < 100_000
    replayed = run("kinst", "replay", str(path))
    assert "the state matches the recording" in replayed.stdout, replayed
    traced = run("kdtrace", "--replay", str(path), "-qn",
                 "fbt::icmp_input:entry { @ = count(); } END { printa(\"%@d\", @); }")
    assert traced.stdout.split()[-1] == "2", traced


def test_a_session_with_the_guests_own_dtrace_is_recorded_and_traced(kernel, tmp_path):
    path = tmp_path / "session.rec"
    result = long("kinst", "record", "-k", kernel, "--base", "-o", str(path),
                  "$ kldload dtraceall; "
                  "dtrace -qn 'kinst::vm_fault: { @ = count(); }' -c 'ls /tmp'")
    assert result.returncode == 0, result
    counted = int(next(word for word in result.stdout.split() if word.isdecimal()))
    assert counted > 1000
    traced = long("kdtrace", "--replay", str(path), "-qn",
                  "fbt::vm_fault:entry { @ = count(); } END { printa(\"%@d\", @); }")
    assert int(traced.stdout.split()[-1]) > 10, traced
    replayed = long("kinst", "replay", str(path))
    assert "the state matches the recording" in replayed.stdout, replayed


def test_a_system_call_in_the_base_does_the_same_on_qemu(kernel):
    result = long("kinst", "xval", "-k", kernel, "--base", "--system", "--json", "-c",
                  'f = sys_open("/bin/sh", 0, 0)')
    assert result.returncode == 0, result.stderr
    agreed = json.loads(result.stdout)
    assert agreed["calls"] == 1 and agreed["firings"] == 300, agreed
    assert {"sys_open", "ufs_open", "ffs_lock"} <= set(agreed["functions"]), agreed["functions"]


def test_the_single_user_shell_and_a_user_disk_work_like_the_base(kernel, tmp_path):
    root = Path(kernel).with_name(catalog.ROOT_FILE)
    result = long("kinst", "run", "-k", kernel, "--disk", str(root), "--single", "--",
                  "mount | wc -l")
    assert result.stdout.split() == ["2"], result


def partitioned(root, path):
    """Write a disk image with a GPT, an empty partition, and a root file system in the second one.
    """
    content = root.read_bytes()
    sectors, first = len(content) // 512, 2048
    total = first + sectors + 64
    entries = b"".join(
        kind + bytes(15) + bytes((number,)) + struct.pack("<QQQ", begin, end, 0) + bytes(72)
        for number, (kind, begin, end) in enumerate((
            (uuid.UUID("83bd6b9d-7f41-11dc-be0b-001560b84f0f").bytes_le, 64, 1087),
            (FREEBSD_UFS, first, first + sectors - 1)), 1)).ljust(128 * 128, b"\0")

    def header(own, other, table):
        head = struct.pack("<8sIIIIQQQQ16sQIII", b"EFI PART", 0x10000, 92, 0, 0, own, other, 34,
                           total - 34, bytes(range(16)), table, 128, 128, zlib.crc32(entries))
        return head[:16] + struct.pack("<I", zlib.crc32(head)) + head[20:]

    protective = bytearray(512)
    struct.pack_into("<B3sB3sII", protective, 446, 0, b"", 0xEE, b"", 1, total - 1)
    protective[510:] = b"\x55\xaa"
    with path.open("wb") as file:
        for sector, piece in ((0, protective), (1, header(1, total - 1, 2)), (2, entries),
                              (first, content), (total - 33, entries),
                              (total - 1, header(total - 1, 1, total - 33))):
            file.seek(sector * 512)
            file.write(piece)
        file.truncate(total * 512)


def test_the_root_file_system_is_found_in_a_partition(kernel, tmp_path):
    disk = tmp_path / "disk.img"
    partitioned(Path(kernel).with_name(catalog.ROOT_FILE), disk)
    result = long("kinst", "run", "-k", kernel, "--disk", str(disk), "--single", "--", "mount")
    assert result.stdout.startswith("/dev/vtbd0p2 on / (ufs"), result


def test_an_image_with_all_devices_has_the_same_state_after_a_restore(based, tmp_path):
    image = attached(based, "peer", "seed", serial=True)
    digests = []
    for _ in range(2):
        machine = boots.booted(image)
        assert run_command(machine, "ping -c 1 peer > /dev/null", LIMIT).status == 0
        digests.append(machine.digest())
    assert digests[0] == digests[1]


def test_the_mapped_files_of_a_process_are_those_that_procstat_prints(kernel):
    machine = kinst_emu.open(kernel, base=True).boot()
    printed = machine.command("sleep 100 & procstat vm $!").output.decode().splitlines()
    rows = [row for row in map(str.split, printed) if len(row) == 11 and row[9] == "vn"]
    inner = machine.emulated
    types = kernel_types(inner.image)
    reader = mapped_files(inner, types, inner.guest.programs.maps)
    threads = [one for one in Threads(inner).all() if one.pid == int(rows[0][0])]
    process = inner.read_u64(threads[0].address + offset_of(types, "struct thread", "td_proc"))
    assert [(one.start, one.end, one.path) for one in reader.of(process)] == [
        (int(row[1], 16), int(row[2], 16), row[10]) for row in rows]
    assert {"/bin/sleep", "/lib/libc.so.7", "/libexec/ld-elf.so.1"} <= {row[10] for row in rows}


def test_each_process_of_a_command_has_its_own_names(kernel):
    """Its structures are at the same addresses as those of the processes before it."""
    for where in ("usym(uregs[R_PC])", "ustack(1)"):
        done = run("kdtrace", "-k", kernel, "--base", "-q", "-n",
                   'syscall::write:entry /execname == "ls"/ { @[pid, ' + where + "] = count(); }",
                   "-c", "$ for i in 1 2 3; do ls /boot >/dev/null; ls / >/dev/null; done")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("libsys.so.7`_write") == 6, done.stdout


LOADS = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static int calls;

__attribute__((noinline)) int
step(int n)
{
	calls++;
	return n + (int)strtoul("12", NULL, 10);
}

int
main(void)
{
	int sum = 0;

	for (int i = 0; i < 100; i++) {
		void *library = dlopen("libm.so.5", RTLD_NOW);
		double (*f)(double) = (double (*)(double))dlsym(library, "cbrt");

		if (f == NULL || f(8.0) != 2.0)
			return 1;
		dlclose(library);
	}
	for (int i = 0; i < 7; i++)
		sum = step(sum);
	printf("%d %d\n", calls, sum);
	return 0;
}
"""


def test_probes_in_shared_objects_fire_as_often_as_a_program_counts(kernel, tmp_path):
    """It loads and unloads a library 100 times; the traced run is the untraced one."""
    (tmp_path / "loads.c").write_text(LOADS)
    wanted = {"libm.so.5 cbrt entry": 100, "libm.so.5 cbrt return": 100,
              "libc.so.7 strtoul entry": 7, "loads step entry": 7, "loads main return": 1}
    program = ",".join(f"pid$target:{module.replace('loads', 'a.out')}:{function}:{name}"
                       for module, function, name in map(str.split, wanted))
    digests = []
    for text in ("BEGIN { }", program + " { @[probemod, probefunc, probename] = count(); }"):
        done = run("kdtrace", "-k", kernel, "--base", "-q", "--digest", "-n", text,
                   "-c", str(tmp_path / "loads.c"))
        assert done.returncode == 0 and "7 84" in done.stdout, done.stderr
        digests.append([line for line in (done.stdout + done.stderr).splitlines()
                        if "digest" in line])
    assert digests[0] and digests[0] == digests[1]
    rows = [line.split() for line in done.stdout.splitlines()]
    assert {" ".join(row[:3]): int(row[3]) for row in rows if len(row) == 4 and row[3].isdecimal()
            } == wanted


@pytest.mark.parametrize("kind", ["json", "xml"])
def test_the_document_of_an_output_format_is_that_of_the_guests_dtrace(kernel, tmp_path, kind):
    """Both run in the same guest; only the times differ."""
    programs = {"values": test_libxo_output.VALUES, "counts": test_libxo_output.AGGREGATIONS}
    for name, program in programs.items():
        (tmp_path / f"{name}.d").write_text(program)
        words = ("-q", "-x", f"oformat={kind}", "-s")
        theirs = run("kinst", "run", "-k", kernel, "--base", "--files", str(tmp_path), "--",
                     " ".join(["dtrace", *words, f"/files/{name}.d", "2>/dev/null"]))
        assert theirs.returncode == 0, theirs.stderr
        mine = run("kdtrace", *words, str(tmp_path / f"{name}.d"))
        assert mine.returncode == 0
        if '"probes": []' in theirs.stdout or "<dtrace></dtrace>" in theirs.stdout:
            pytest.skip("this guest's own dtrace records nothing for the program, as text either")
        document = mine.stdout.rstrip("\n")
        found = theirs.stdout[theirs.stdout.index(document[:8]) :].rstrip("\n")
        assert [re.sub(r"(timestamp\"?[:>])\d+", r"\g<1>", one) for one in (found, document)] == [
            re.sub(r"(timestamp\"?[:>])\d+", r"\g<1>", document)] * 2


def test_pid_counts_what_a_program_with_threads_children_and_new_code_counts_itself(kernel):
    """As in FreeBSD, a child of vfork(2), which shares the memory, counts; that of fork(2) not."""
    source, digests = str(Path(__file__).with_name("counts.c")), []
    for program in ("pid$target:counts:called:entry,pid$target:counts:called:return "
                    "{ @[probename, pid - $target] = count(); }", "END { }"):
        done = run("kdtrace", "-k", kernel, "--base", "--digest", "-qn", program, "-c", source)
        assert done.returncode == 0, done.stderr
        assert "called 72 times" in done.stdout and "executed" in done.stdout
        digests.append([line for line in (done.stdout + done.stderr).splitlines()
                        if line.startswith("digest")])
        if "pid" in program:
            rows = sorted(line.split() for line in done.stdout.splitlines()
                          if line.strip().startswith(("entry", "return")))
            assert [(row[0], row[2]) for row in rows] == [
                ("entry", "67"), ("entry", "5"), ("return", "67"), ("return", "5")]
    assert digests[0] and digests[0] == digests[1]


def test_user_stacks_have_the_names_of_shared_objects_and_their_functions(kernel):
    done = run("kdtrace", "-k", kernel, "--base", "-q", "-n", """
        syscall::write:entry /execname == "ls"/ {
            @[usym(uregs[R_PC]), umod(uregs[R_PC])] = count(); ustack(3); }
        syscall::mmap:entry /execname == "ls"/ { @maps[umod(uregs[R_PC])] = count(); }""",
        "-c", "$ ls /")
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert "libsys.so.7`_write" in words and "ld-elf.so.1" in words
    assert any(word.startswith("libsys.so.7`_write+0x") for word in words)
