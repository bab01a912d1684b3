"""Tests of the gdb server on recordings of the teaching kernel, with packets and with gdb."""

import re
import shutil
import socket
import subprocess
import threading
import xml.etree.ElementTree as ET
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dtrace.flow.steps import steps
from emu.arch.target_description import DESCRIPTIONS
from emu.gdb.framing import framed, unescaped
from emu.gdb.packets import Connection, GdbError, Gone
from emu.gdb.server import connections, serve
from emu.gdb.session import GdbSession, NoThreads
from emu.gdb.target import LiveTarget, PlayedTarget, Why
from emu.machine.machine import Until
from emu.qemu.gdb_remote import GdbRemote
from emu.replay.player import Player
from emu.replay.recording import Recorder, Recording
from emu.replay.starts import BOOT
from emu.unicorn._watch import WriteWatch
from tests.emu.replay.test_recording import started, use


@pytest.fixture
def played(image, tmp_path):
    machine, path = started(image), tmp_path / "file.rec"
    with Recorder(machine, path, BOOT, "all of it"):
        use(machine)
    return Player(Recording(path), started(image))


class Debugger:
    """A gdb server session and a gdb client, connected by a socket pair."""

    def __init__(self, target, commands=()):
        here, there = socket.socketpair()
        self.session = GdbSession(target, Connection(there), NoThreads(), dict(commands))
        self.problem = None
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()
        self.remote = GdbRemote(here, 20)

    def _serve(self):
        try:
            self.session.serve()
        except Gone:
            pass
        except Exception as error:  # noqa: BLE001 (close() reports the error)
            self.problem = error

    def ask(self, text):
        """Send a packet and return the reply without the session's console output."""
        self.remote.send(text)
        while (answer := self.remote.receive()).startswith("O") and answer != "OK":
            pass
        return answer

    def close(self):
        self.remote.close()
        self.thread.join(60)
        assert not self.thread.is_alive() and self.problem is None, self.problem




@pytest.fixture
def debugger(played):
    found = Debugger(PlayedTarget(played))
    yield found
    found.close()


def pc_of(debugger, machine):
    number = [r.ours for r in DESCRIPTIONS[machine.arch.name].registers].index(machine.arch.pc)
    return int.from_bytes(bytes.fromhex(debugger.ask(f"p{number:x}")), "little")


def test_a_breakpoint_stops_forward_and_reverse_execution(played, debugger):
    address = played.machine.image.symbols.find("strlen").address
    assert debugger.ask(f"Z0,{address:x},1") == "OK"
    forwards = []
    while (answer := debugger.ask("vCont;c")).startswith("T05") and "replaylog" not in answer:
        assert pc_of(debugger, played.machine) == address
        forwards.append(played.position)
    assert "replaylog:end" in answer and len(forwards) > 2
    backwards = []
    while "replaylog" not in (answer := debugger.ask("bc")):
        assert pc_of(debugger, played.machine) == address
        backwards.append(played.position)
    assert "replaylog:begin" in answer and backwards[::-1] == forwards
    assert debugger.ask(f"z0,{address:x},1") == "OK"
    assert "replaylog:end" in debugger.ask("c") and played.at_end and played.difference() == ""


def test_reverse_steps_undo_steps(played, debugger):
    played.seek(played.recording.last.instructions // 2)
    states = [(played.position, played.machine.registers())]
    for _ in range(20):
        assert debugger.ask("s").startswith("T05")
        states.append((played.position, played.machine.registers()))
    for state in reversed(states[:-1]):
        assert debugger.ask("bs").startswith("T05")
        assert (played.position, played.machine.registers()) == state


@pytest.mark.parametrize(("kind", "name"), [(2, "watch"), (3, "rwatch"), (4, "awatch")])
def test_a_watchpoint_sees_the_same_accesses_as_stepping(image, played, debugger, kind, name):
    played.seek(played.recording.last.instructions // 4)
    here = played.position
    slow = Player(played.recording, started(image))
    slow.seek(here)
    address = busiest(slow)
    # Find the same accesses by single-stepping.
    slow.seek(here)
    physical, known = slow.machine.translate(address), []
    watch = WriteWatch(slow.machine.engine, physical, 8, kind != 3, kind != 2)
    while not slow.at_end and len(known) < 4:
        before, seen = slow.position, watch.writes
        slow.run(Until(instructions=before.instructions + 1))
        watch.look()
        if watch.writes > seen:
            known.append((before, slow.position))
    watch.close()
    if len(known) < 3:
        pytest.fail("the address is accessed fewer than three times")
    assert debugger.ask(f"Z{kind},{address:x},8") == "OK"

    def go(command, step):
        """Continue to the access, and step over the access if the machine stopped before it."""
        assert f"{name}:{address:x};" in debugger.ask(command)
        if played.machine.arch.watches_before:
            assert debugger.ask(f"z{kind},{address:x},8") == "OK"
            assert debugger.ask(step).startswith("T05")
            assert debugger.ask(f"Z{kind},{address:x},8") == "OK"

    for _before, after in known[:3]:
        go("c", "s")
        assert played.position == after
    for before, _after in reversed(known[:2]):
        while played.position > before:
            go("bc", "bs")
        assert played.position == before


def test_registers_and_memory_match_the_machine(played, debugger):
    machine = played.machine
    played.seek(played.recording.last.instructions // 3)
    registers = DESCRIPTIONS[machine.arch.name].registers
    digits_of_all, at = debugger.ask("g"), 0
    for register in registers:
        digits = digits_of_all[at : at + register.bits // 4]
        at += register.bits // 4
        if register.ours in machine.arch.registers:
            assert int.from_bytes(bytes.fromhex(digits), "little") == (
                machine.read_register(register.ours) & (1 << register.bits) - 1)
    assert at == len(digits_of_all)
    assert bytes.fromhex(debugger.ask(f"m{machine.sp:x},40")) == machine.read(machine.sp, 64)
    assert debugger.ask("m1234567812345678,8") == "E14"


def test_a_debugger_cannot_modify_a_recording(played, debugger):
    digest = played.machine.digest()
    assert debugger.ask(f"M{played.machine.sp:x},1:ff") .startswith("E.")
    assert debugger.ask("P0=0000000000000000") .startswith("E.")
    assert played.machine.digest() == digest


def busiest(player):
    """Return the address that receives the most eight-byte stores in the rest of the recording."""
    stored = Counter(
        address for piece in steps(player, player.recording.last, False, True)
        if not isinstance(piece, bytes)
        for step in piece for address, _physical, data in step.stores
        if address is not None and address % 8 == 0 and len(data) == 8)
    return stored.most_common(1)[0][0]


def test_a_live_machine_can_be_written_but_not_reversed(image, played):
    machine = started(image)
    count = played.recording.last.instructions // 4
    played.seek(count)
    address = busiest(played)
    debugger = Debugger(LiveTarget(machine))
    assert "Reverse" not in debugger.ask("qSupported:swbreak+")
    machine.run(Until(instructions=count))
    assert debugger.ask(f"Z0,{machine.pc:x},1") == debugger.ask(f"z0,{machine.pc:x},1") == "OK"
    assert debugger.ask(f"M{machine.sp - 64:x},2:abcd") == "OK"
    assert machine.read(machine.sp - 64, 2) == b"\xab\xcd"
    assert debugger.ask(f"Z2,{address:x},8") == "OK"
    assert f"watch:{address:x};" in debugger.ask("c")
    assert debugger.ask("bs") .startswith("E.")
    debugger.close()


def test_target_descriptions_are_well_formed_and_name_known_registers(image):
    machine = started(image)
    description = DESCRIPTIONS[machine.arch.name]
    root = ET.fromstring(description.xml())
    names = [reg.get("name") for reg in root.iter("reg")]
    assert len(names) == len(set(names)) == len(description.registers)
    for register in description.registers:
        if register.ours is not None and register.ours not in machine.cpu.vectors:
            machine.read_register(register.ours)


def test_malformed_packets_are_refused_and_the_session_continues(debugger):
    for packet in ("m", "mzz,1", "Z9,1,1", "Z0,zz,1", "p", "pfffff", "P", "Hg7777", "T77",
                   "vCont;x", "qXfer:features:read:other.xml:0,10", "qRcmd,zz", "vFile:open:",
                   "Z2,10,0", "Z2,fff,8", "b", "!", "qThreadExtraInfo,77", "vCont;r1",
                   "Z0,1ffffffffffffffffff,1", "Z2,1ffffffffffffffffff,1", "m1ffffffffffffffff0,8"):
        answer = debugger.ask(packet)
        assert answer in ("", "E01", "E14") or answer.startswith("E."), packet
    assert debugger.ask("qC").startswith("QC")


@given(st.lists(st.binary(min_size=1, max_size=30).filter(
    lambda p: p[:1] not in (b"c", b"s", b"b", b"k", b"D", b"v")), max_size=10))
@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_packet_is_answered(debugger, packets):
    for packet in packets:
        debugger.remote._write(framed(packet))
        while debugger.remote.receive().startswith("O6"):
            pass


@given(st.binary(max_size=100))
def test_packet_framing_can_be_reversed(content):
    frame = framed(content)
    assert frame[:1] == b"$" and frame[-3:-2] == b"#" and unescaped(frame[1:-3]) == content
    assert b"#" not in frame[1:-3] and b"$" not in frame[1:]


def test_damaged_packets_are_requested_again():
    here, there = socket.socketpair()
    connection = Connection(there)
    here.sendall(b"$qC#00" + framed(b"g"))
    assert connection.packet() == b"g" and here.recv(10) == b"-+"
    here.sendall(b"$" + b"x" * (1 << 16))
    with pytest.raises(GdbError, match="at once"):
        connection.packet()
    here.close()
    there.close()


def test_an_invalid_port_is_refused():
    for place in ("port", "70000", "-1", "1.5"):
        with pytest.raises(GdbError, match="is neither a port number"), connections(place, print):
            pass


def test_monitor_commands_answer_and_list_the_known_ones(played):
    def hello(rest):
        yield f"hello {rest}"

    debugger = Debugger(PlayedTarget(played), {"hello": ("hello NAME: says it", hello)})
    said = []
    for line in ("hello you", "nonsense"):
        debugger.remote.send("qRcmd," + line.encode().hex())
        while (answer := debugger.remote.receive()) != "OK":
            said.append(bytes.fromhex(answer[1:]).decode())
    assert said == ["hello you\n", "monitor hello NAME: says it\n"]
    debugger.close()


GDB = shutil.which("gdb-multiarch")


@pytest.mark.skipif(GDB is None, reason="gdb-multiarch is not installed")
def test_gdb_breaks_steps_back_and_continues_to_the_end_of_a_recording(image, played):
    assert GDB is not None
    ports = []
    ready = threading.Event()

    def listening(port):
        ports.append(port)
        ready.set()

    def run():
        serve(PlayedTarget(played), "0", listening, NoThreads(), {})

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(60)
    commands = [f"target remote 127.0.0.1:{ports[0]}", "break strlen", "continue",
                "print $_", "stepi", "reverse-stepi", "x/1i $pc", "delete", "continue"]
    words = [GDB, "-nx", "-batch", "-iex", "set osabi none", str(image.path)]
    for command in commands:
        words += ["-ex", command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    thread.join(60)
    assert "Breakpoint 1, strlen" in done.stdout, done.stderr
    assert "<strlen" in done.stdout and "No more reverse-execution history" in done.stdout
    assert played.at_end and played.difference() == ""


def served(target):
    """Start a server on a free port in a thread and return (port, thread)."""
    ports, ready = [], threading.Event()

    def listening(port):
        ports.append(port)
        ready.set()

    thread = threading.Thread(target=serve, args=(target, "0", listening, NoThreads(), {}))
    thread.start()
    assert ready.wait(60)
    return ports[0], thread


@pytest.mark.parametrize("live", [False, True])
def test_a_client_that_connects_and_leaves_does_not_end_the_server(played, image, live):
    target = LiveTarget(started(image)) if live else PlayedTarget(played)
    port, thread = served(target)
    for first in (b"", b"$m0,1#fa", b"\x03"):
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.sendall(first)
    with socket.create_connection(("127.0.0.1", port)) as last:
        last.settimeout(20)
        last.sendall(b"$?#3f")
        assert last.recv(1) == b"+" and last.recv(1) == b"$"
        last.sendall(b"+$D#44")
        thread.join(20)
    assert not thread.is_alive()


def watched_store(played):
    """Find a store in a recording and return (position before the store, stored address)."""
    played.seek(played.recording.last.instructions // 4)
    here = played.position
    address = busiest(played)
    played.seek(here)
    watch = WriteWatch(played.machine.engine, played.machine.translate(address), 8, True, False)
    try:
        while not watch.writes:
            before = played.position.instructions
            played.run(Until(instructions=before + 1))
            watch.look()
    finally:
        watch.close()
    return before, address


def test_a_watchpoint_stops_on_the_right_side_of_the_access_in_both_directions(played):
    """Execution stops before or after the access, depending on the architecture."""
    before = played.machine.arch.watches_before
    position, address = watched_store(played)
    target = PlayedTarget(played)
    target.seek(position - 3)
    target.watch(address, 1, 2)
    forward = target.go(lambda: False)
    assert forward.why is Why.WATCH and target.count >= position - 2
    at = target.count if before else target.count - 1  # instruction count before the store
    target.seek(at)
    stepped = target.step()
    assert stepped.why is Why.WATCH and target.count == at + (not before)
    target.seek(at + 1)
    stepped = target.back_step()
    assert stepped.why is Why.WATCH and target.count == at + before
    target.seek(at + 2)
    back = target.back(lambda: False)
    assert back.why is Why.WATCH and target.count == at + before


@pytest.mark.skipif(GDB is None, reason="gdb-multiarch is not installed")
def test_gdb_shows_old_and_new_value_at_a_watched_store(image, played):
    assert GDB is not None
    position, address = watched_store(played)
    target = PlayedTarget(played)
    target.seek(position - 1)
    old = new = played.machine.read(address, 1)[0]
    while new == old:  # gdb ignores stores that do not change the value
        played.run(Until(instructions=played.position.instructions + 1))
        new = played.machine.read(address, 1)[0]
    target.seek(position - 1)
    port, thread = served(target)
    words = [GDB, "-nx", "-batch", "-iex", "set osabi none", str(image.path)]
    for command in (f"target remote 127.0.0.1:{port}", f"watch *(char *){address:#x}", "continue",
                    "print $_exitcode", "reverse-continue", "detach"):
        words += ["-ex", command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    thread.join(60)
    assert not thread.is_alive(), done.stderr
    changes = re.findall(r"Old value = (-?\d+) .*\nNew value = (-?\d+) ", done.stdout)
    assert [(int(one) & 255, int(other) & 255) for one, other in changes] == [
        (old, new), (new, old)], done.stdout  # running forward, then backward


LLDB = shutil.which("lldb-19") or shutil.which("lldb")
WITHOUT_RISCV = "lldb version 14."  # the lldb version in Debian 12


@pytest.mark.skipif(LLDB is None, reason="lldb is not installed")
def test_lldb_stops_at_a_watched_store(image, played):
    assert LLDB is not None
    version = subprocess.run([LLDB, "--version"], capture_output=True, text=True, check=True).stdout
    if played.machine.arch.name == "riscv64" and version.startswith(WITHOUT_RISCV):
        pytest.skip("lldb 14 does not know riscv64: apt-get install lldb-19")
    position, address = watched_store(played)
    target = PlayedTarget(played)
    target.seek(position - 1)
    port, thread = served(target)
    words = [LLDB, "--no-lldbinit", "--batch"]
    for command in (f"target create {image.path}", f"gdb-remote 127.0.0.1:{port}",
                    f"watchpoint set expression -s 1 -w write -- {address:#x}", "continue",
                    "detach"):
        words += ["-o", command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    thread.join(60)
    assert "Watchpoint 1 hit" in done.stdout or "stop reason = watchpoint 1" in done.stdout, (
        done.stdout + done.stderr)
