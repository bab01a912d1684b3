"""Tests of the devices of a command line, on machines whose kernels have no drivers for them."""

from dataclasses import replace

import pytest

import kinst_emu
from emu.elf.boot_options import BootOptions, Network, SharedFile
from emu.host.errors import KinstError, MachineError
from emu.machine.machine import Until
from emu.network.capture import read_frames, write_frames
from emu.replay.inputs import FRAME, TYPE
from emu.replay.player import Player
from emu.replay.recording import Recorder, Recording
from emu.replay.starts import BOOT
from emu.unicorn.machine import UnicornMachine
from kinst_emu.cli import device_words
from kinst_emu.cli.device_words import (
    DeviceWords,
    NetworkWords,
    attached,
    connected,
    parse_network,
)
from tests.conftest import MEMORY

ARP = b"\xff" * 6 + bytes.fromhex("525400000001") + b"\x08\x06" + bytes(46)


def with_devices(image, kind="wire", files=()):
    return replace(image, options=BootOptions(
        network=Network(kind, files), entropy="seed", serial=True))


def started(image):
    machine = UnicornMachine(image, MEMORY)
    machine.boot()
    return machine


@pytest.mark.parametrize("text, words", [
    ("peer", NetworkWords("peer")), ("peer:/x", NetworkWords("peer:/x")),
    ("peer,out", NetworkWords("peer", captured="out")),
    ("in.pcap", NetworkWords("wire", "in.pcap")),
    ("in.pcap,out.pcap", NetworkWords("wire", "in.pcap", "out.pcap")),
    ("a,b,c", NetworkWords("wire", "a,b", "c")),
])
def test_a_network_is_parsed(text, words):
    parsed = parse_network(text)
    shown = [None if path is None else str(path) for path in (parsed.incoming, parsed.captured)]
    assert (parsed.of, *shown) == (words.of, words.incoming, words.captured)


def test_a_network_for_python_is_checked(image):
    with pytest.raises(KinstError, match="teaching kernel has no drivers"):
        attached(image, "peer", None, False)


def test_the_digest_of_a_kernel_depends_on_its_devices(image):
    images = [image, with_devices(image), with_devices(image, "peer")]
    images += [replace(image, options=BootOptions(entropy=seed)) for seed in ("x", "y")]
    assert len({one.identity for one in images}) == len(images)


def test_the_contents_of_files_are_not_part_of_what_was_booted(image):
    file = SharedFile("a", memoryview(b"1"))
    images = [with_devices(image, "peer", files) for files in (
        (), (file,), (replace(file, content=memoryview(b"2")),), (replace(file, name="b"),))]
    assert len({one.identity for one in images}) == 1
    assert len({one.options.late_digest for one in images}) == len(images)


def test_nothing_is_connected_to_the_second_serial_port_by_default(image):
    machine = started(with_devices(image))
    before = bytes(machine.console.text)
    machine.board.second.output(65)
    assert machine.console.text == before
    heard = []
    machine.board.second.output = heard.append
    python = kinst_emu.Machine(kinst_emu.open(image.path), machine)
    machine.board.second.output(66)
    assert heard == [66] and python.second_output == b"B"
    with pytest.raises(KinstError, match="open the kernel with serial=True"):
        _ = kinst_emu.Machine(python.kernel, started(image)).second_output


def test_devices_change_nothing_for_a_kernel_that_does_not_use_them(image):
    machines = [started(image), started(with_devices(image))]
    for machine in machines:
        machine.run(Until(console="teaching> "))
    assert len({machine.instructions for machine in machines}) == 1
    assert machines[1].board.second is not None and machines[0].board.second is None


def test_frames_and_keys_for_other_devices_are_inputs_of_a_recording(image, tmp_path):
    machine, path = started(with_devices(image, "peer", (
        SharedFile("a", memoryview(b"content")),))), tmp_path / "run.rec"
    with Recorder(machine, path, BOOT, "frames"):
        machine.send_frame(50_000, ARP)
        machine.type_second(b"keys")
        machine.run(Until(instructions=3000))
    recording = Recording(path)
    assert [(one.kind, one.name) for one in recording.inputs] == [(FRAME, ""), (TYPE, "1")]
    assert recording.options.digest == machine.image.options.digest
    player = Player(recording, UnicornMachine(replace(image, options=recording.options), MEMORY))
    player.machine.boot()
    player = Player(recording, player.machine)
    player.advance_to_end()
    assert not player.difference()


def test_frames_cannot_be_sent_where_there_is_no_device_or_of_a_wrong_size(image):
    with pytest.raises(MachineError, match="has no network device"):
        started(image).send_frame(0, ARP)
    with pytest.raises(MachineError, match="has no second serial port"):
        started(image).type_second(b"x")
    machine = started(with_devices(image))
    for when, frame in ((0, b"x" * 13), (0, b"x" * 1519), (-1, ARP), (1 << 64, ARP)):
        with pytest.raises(MachineError, match="cannot arrive"):
            machine.send_frame(when, frame)
    with pytest.raises(MachineError, match="no disk whose content"):
        machine.insert_files()


def test_files_are_connected_and_written_even_after_an_error(image, tmp_path):
    incoming, captured, serial = (tmp_path / name for name in ("in", "out", "serial"))
    write_frames(incoming, [(5, ARP), (9, ARP)])
    machine = started(with_devices(image))
    words = DeviceWords(NetworkWords("wire", incoming, captured), None, serial)
    with pytest.raises(RuntimeError), connected(machine, words):
        coming = machine.board.network.state()["link"]["coming"]
        assert [when - machine.now for when, _frame in coming] == [10**9, 10**9 + 4]
        machine.board.network.listener(7, ARP)
        for byte in b"text":
            machine.board.second.output(byte)
        raise RuntimeError
    assert read_frames(captured) == [(0, ARP)] and serial.read_bytes() == b"text"


def test_a_capture_has_a_limit_that_is_reported(image, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(device_words, "MAX_CAPTURE", 100)
    monkeypatch.setattr(device_words, "MAX_SERIAL", 3)
    machine = started(with_devices(image))
    words = DeviceWords(NetworkWords("wire", None, tmp_path / "out"), None, tmp_path / "serial")
    with connected(machine, words):
        for _ in range(3):
            machine.board.network.listener(7, ARP)
        for byte in b"text":
            machine.board.second.output(byte)
    assert len(read_frames(tmp_path / "out")) == 1
    assert (tmp_path / "serial").read_bytes() == b"tex"
    said = capsys.readouterr().err
    assert "2 frames were left out" in said and "truncated" in said


def test_a_file_that_cannot_be_written_is_named(image, tmp_path):
    machine = started(with_devices(image))
    words = DeviceWords(NetworkWords("wire", None, tmp_path / "missing/out"))
    with pytest.raises(KinstError, match="cannot be written"), connected(machine, words):
        pass
