"""Command-line options for further devices: a network device, a source of entropy, a serial port.

``connected`` connects the devices to files while a command runs the machine.
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from emu.elf.boot_options import MAX_SEED, NETWORKS, PEER, WIRE, Network
from emu.elf.image import Image
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from emu.network.capture import read_frames, write_frames
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.shared_folder import shared_files
from kinst_emu.terminal.terminal import check_writable

FIRST_FRAME = 10**9  # virtual time in ns from the start of a run to the first frame of --net
MAX_CAPTURE = 256 << 20  # maximum size in bytes of all captured frames together
MAX_SERIAL = 64 << 20  # maximum size in bytes of the second serial port's output


@dataclass(frozen=True)
class NetworkWords:
    """The value of --net.

    :param of: the network, as for ``attached``.
    :param incoming: pcap file with the frames that arrive at the guest, or None.
    :param captured: pcap file for the frames of the run, or None.
    """

    of: str
    incoming: Path | None = None
    captured: Path | None = None


@dataclass(frozen=True)
class DeviceWords:
    """The devices that a command line asks for.

    :param serial: file for the output of the second serial port; None: there is no such port.
    """

    network: NetworkWords | None = None
    entropy: str | None = None
    serial: Path | None = None

    @property
    def captured(self) -> Path | None:
        """The pcap file for the frames of the run, or None."""
        return None if self.network is None else self.network.captured


def device_words(arguments: argparse.Namespace) -> DeviceWords:
    """Return the devices that a parsed command line asks for."""
    return DeviceWords(arguments.net, arguments.entropy, arguments.serial)


def device_options(parser: argparse.ArgumentParser) -> None:
    """Add --net, --entropy and --serial."""
    parser.add_argument("--net", metavar="WHAT[,OUT.pcap]", type=parse_network,
                        help="attach a network device: with WHAT 'peer', to a built-in host "
                        "10.0.2.2 with DHCP, DNS, ping, echo, discard and HTTP, or 'peer:FOLDER', "
                        "which also serves the files of a host folder; with a pcap file, to a "
                        "wire from which its frames arrive, beginning one virtual second after "
                        "the start of the run; OUT.pcap receives all frames of the run (default: "
                        "no network device)")
    parser.add_argument("--entropy", metavar="SEED", type=parse_seed,
                        help="attach a virtio entropy device whose bytes follow from this text "
                        "(default: no such device)")
    parser.add_argument("--serial", metavar="FILE", type=Path,
                        help="attach a second serial port, and write its output to this file "
                        "(default: no second port)")


def parse_network(text: str) -> NetworkWords:
    """Return the value of --net.

    :raises ArgumentTypeError: when it is malformed.
    """
    what, comma, out = text.rpartition(",")
    if not comma:
        what, out = text, ""
    captured = Path(out) if out else None
    if (comma and not out) or not what:
        raise argparse.ArgumentTypeError(f"{text!r} is not 'peer', 'peer:FOLDER' or a pcap file, "
                                         "optionally followed by a comma and a pcap file")
    if what == PEER or what.startswith(PEER + ":"):
        return NetworkWords(what, captured=captured)
    return NetworkWords(WIRE, Path(what), captured)


def parse_seed(text: str) -> str:
    """Return the value of --entropy.

    :raises ArgumentTypeError: when it is empty, too long or not printable.
    """
    if not 0 < len(text) <= MAX_SEED or not text.isprintable():
        raise argparse.ArgumentTypeError(f"the seed must have 1 to {MAX_SEED} printable characters")
    return text


def with_devices(image: Image, words: DeviceWords) -> Image:
    """Return the image with the devices attached.

    :raises KinstError: as for ``attached``, or when an output file cannot be written.
    """
    for option, path in (("--serial", words.serial), ("--net", words.captured)):
        if path is not None:
            check_writable(path, option)
    network = None if words.network is None else words.network.of
    return attached(image, network, words.entropy, words.serial is not None)


def attached(image: Image, network: str | None, entropy: str | None, serial: bool) -> Image:
    """Return the image with the given devices attached.

    :param network: ``wire``, ``peer``, or ``peer:`` and a folder.
    :raises KinstError: when the kernel is a teaching kernel, the network is none of these, or the
        peer's folder cannot be used.
    """
    if network is None and entropy is None and not serial:
        return image
    if catalog.is_teaching(image):
        raise KinstError("the teaching kernel has no drivers for network, entropy and serial "
                         "devices; give a FreeBSD kernel")
    if entropy is not None and not (0 < len(entropy) <= MAX_SEED and entropy.isprintable()):
        raise KinstError(f"the seed of the entropy device must have 1 to {MAX_SEED} printable "
                         "characters")
    net = None
    if network is not None:
        kind, colon, folder = network.partition(":")
        if kind not in NETWORKS or (colon and (kind != PEER or not folder)):
            raise KinstError(f"network {network!r}: must be 'wire', 'peer' or 'peer:FOLDER'")
        net = Network(kind, shared_files(Path(folder)) if folder else ())
    return replace(image, options=replace(
        image.options, network=net, entropy=entropy, serial=serial))


@contextlib.contextmanager
def connected(machine: UnicornMachine, words: DeviceWords) -> Iterator[None]:
    """Connect the devices to their files during a ``with`` block, and write the files at its end.

    The files are written even after an error.

    :raises KinstError: when a pcap file cannot be read, or a file cannot be written.
    """
    frames, output = _Frames(), bytearray()
    if words.network is not None and words.network.incoming is not None:
        for delay, frame in read_frames(words.network.incoming):
            machine.send_frame(machine.now + FIRST_FRAME + delay, frame)
    if words.captured is not None and machine.board.network is not None:
        machine.board.network.listener = frames.take
    if machine.board.second is not None:
        def sent(byte: int) -> None:
            if len(output) < MAX_SERIAL:
                output.append(byte)

        machine.board.second.output = sent
    try:
        yield
    finally:
        if words.captured is not None:
            with _writing(words.captured):
                frames.write(words.captured)
        if words.serial is not None:
            with _writing(words.serial), replacing(words.serial) as file:
                file.write(output)
        if len(output) == MAX_SERIAL:
            print(f"kinst: {words.serial}: truncated to {MAX_SERIAL >> 20} MiB", file=sys.stderr)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Name the file if it cannot be written in a ``with`` block."""
    try:
        yield
    except OSError as error:
        raise KinstError(f"{path}: cannot be written: {error.strerror}; choose another file"
                         ) from None


class _Frames:
    """Collects the frames of a run."""

    def __init__(self) -> None:
        self._frames: list[tuple[int, bytes]] = []
        self._size, self._lost = 0, 0

    def take(self, when: int, frame: bytes) -> None:
        """Keep a frame, unless there are too many."""
        if self._size + len(frame) > MAX_CAPTURE:
            self._lost += 1
            return
        self._size += len(frame)
        self._frames.append((when, frame))

    def write(self, path: Path) -> None:
        """Write the frames to a pcap file."""
        write_frames(path, self._frames)
        if self._lost:
            print(f"kinst: {path}: {self._lost} frames were left out; the limit is "
                  f"{MAX_CAPTURE >> 20} MiB", file=sys.stderr)
