"""Run D programs by the guest's dtrace(1) and by kdtrace, and compare the outcomes."""

import contextlib
import gc
import io
import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dtrace.judge.generator import generated
from dtrace.judge.outcome import Outcome, differences, kinds, unaligned
from dtrace.judge.program import Node
from dtrace.judge.scripts import divided
from dtrace.judge.shrink import shrunk
from emu.elf.image import Image
from emu.host.errors import KinstError
from emu.host.input_file import taken
from images import catalog
from images.guest_tracer import GuestTracer, TracerError
from images.systems import with_disks
from kinst.verify.laboratory import finding
from kinst.verify.sweep.store import Kept
from kinst.verify.sweep.sweep import KeptTask
from kinst.verify.sweep.workers import check_identity
from kinst_emu.cli.script import trace
from kinst_emu.terminal.shared_output import SharedOutput

SEED = "seed "  # begins the name of a random program; other names are those of files
MAX_SCRIPT = 1 << 20  # maximum size of a script in bytes
# Errors that a mistake in kdtrace may raise
MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError,
            ValueError)
# A workload begins after this number of virtual seconds, when dtrace(1) certainly traces.  It must
# be shorter than 15 seconds, because the trace ends then.
# dtrace(1) runs with this option, too: see ConsoleSession.judge.
NOT_TEMPORAL = ("-x", "temporal=no")
WAIT = 20
LATER = f"( (sleep {WAIT}; {{}}) & )"
END = f"\ntick-{2 * WAIT - 5}s\n{{\n\texit(0);\n}}\n"
WORDS = AGREES, REFUSED, LIMITED, DIFFERS, NOT_COMPARED = (
    "agrees", "both refuse it", "beyond a limit", "differs", "not compared")


class Judge:
    """The two tracers, with the same kernel and base system.

    :param memory: guest RAM in bytes.
    :param workload: command of the guest's shell that runs while the programs trace, or "".
    :raises KinstError: the system does not boot, or has no dtrace(1).
    """

    def __init__(self, image: Image, memory: int, workload: str = "") -> None:
        self._kernel, self._memory, self._workload = image.path, memory, workload
        self._theirs = GuestTracer(image, memory)
        tracer = self._theirs.machine.guest.probes.tracer
        self._addresses = tracer is None or tracer.addresses

    def theirs(self, program: str) -> Outcome:
        """Run a program by the guest's dtrace(1).

        :raises TracerError: the program cannot be typed, or dtrace(1) does not start.
        """
        background = LATER.format(self._workload) if self._workload else ""
        judged = self._theirs.run(program + END * bool(background), before=background)
        return Outcome(judged.status, judged.output, judged.errors)

    def ours(self, program: str) -> Outcome:
        """Run a program by kdtrace; if it fails in an unexpected way, the errors say how.

        :raises KeyboardInterrupt: the user has interrupted the program.
        """
        if not self._workload:
            return kdtrace(self._kernel, self._memory, program, NOT_TEMPORAL)
        return kdtrace(self._kernel, self._memory, program + END,
                       [*NOT_TEMPORAL, "-c", f"$ stty -opost; {LATER.format(self._workload)}; "
                        f"sleep {2 * WAIT}; stty opost"])

    def differences(self, program: str) -> list[str]:
        """Run a program twice; return lines that describe how the outcomes differ.

        A program that does not end under dtrace(1) is not compared.

        :raises TracerError: the program cannot be typed.
        """
        theirs = self.theirs(program)
        return [] if theirs.status is None else self.compared(theirs, self.ours(program))

    def compared(self, theirs: Outcome, ours: Outcome) -> list[str]:
        """Return lines that describe how two outcomes differ."""
        return differences(theirs, ours, self._addresses)


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """Let later collections of garbage skip what is prepared in a ``with`` block.

    What an earlier block has prepared may be collected again.
    """
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


def kdtrace(kernel: Path, memory: int, program: str, options: Sequence[str] = ()) -> Outcome:
    """Run a program by kdtrace with a base system; unexpected failures are part of the errors.

    :param memory: guest RAM in bytes.
    :param options: further options, such as ``-l``.
    :raises KeyboardInterrupt: the user has interrupted the program.
    """
    content, errors = io.BytesIO(), io.StringIO()
    output = SharedOutput(content, "utf-8", "surrogateescape")
    with tempfile.NamedTemporaryFile("w", suffix=".d") as file, _interruptible():
        file.write(program)
        file.flush()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                status = trace(["-k", str(kernel), "--base", "--memory", str(memory >> 20),
                                *options, "-s", file.name])
            except KinstError as error:
                print(f"dtrace: {error}", file=errors)
                status = 1
            except MISTAKES as error:
                print(f"kdtrace fails: {type(error).__name__}: {error}", file=errors)
                status = 70
    gc.collect()  # at once: a machine is part of a cycle, and its memory is hundreds of megabytes
    output.flush()
    return Outcome(status, _shown(content.getvalue()),
                   _shown(errors.getvalue().encode("utf-8", "surrogateescape")))


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if Ctrl-C was pressed, which only ends a trace."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    reading, writing = os.pipe()
    try:
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
        with contextlib.suppress(BlockingIOError):  # no signal was received
            if signal.SIGINT in os.read(reading, 4096):
                raise KeyboardInterrupt
    finally:
        os.close(reading)
        os.close(writing)


def _shown(content: bytes) -> str:
    """Return what was written, with bytes that are not UTF-8 as ``\\xff``."""
    return content.decode("utf-8", "backslashreplace")


Item = tuple[str, str]  # name and source of a program; the name is as in ``Verdict``


@dataclass(frozen=True)
class Verdict:
    """What came of one program on both tracers.

    :param name: what the program is: a file, or ``seed N``.
    :param word: one of ``WORDS``.
    :param lines: how the outcomes of the smallest program differ; or why there is none.
    :param smallest: source of the smallest program that differs.
    """

    name: str
    word: str
    lines: tuple[str, ...] = ()
    smallest: str = ""


@dataclass(frozen=True)
class JudgeTask(KeptTask[Item, Verdict, Judge]):
    """Task that runs programs and makes those that differ smaller.

    :param identity: identity of the kernel; a worker with another one refuses.
    :param memory: guest RAM in bytes.
    :param workload: as in ``Judge``.
    """

    kernel: str
    identity: str
    memory: int
    workload: str = ""

    def prepare(self) -> Judge:
        """Boot the base system and load its tracing modules.

        :raises KinstError: this is not possible, or the kernel is not the expected one.
        """
        image = catalog.find(self.kernel)
        check_identity(image, self.identity)
        with staying():
            return Judge(with_disks(image, [], base=True), self.memory, self.workload)

    def results(self, prepared: Judge, items: Sequence[Item]) -> list[Verdict]:
        """Run programs on both tracers."""
        return [judged(prepared, item) for item in items]

    def named(self, item: Item) -> bytes:
        """Return the key under which a store keeps a verdict."""
        return json.dumps(item).encode()

    def kept(self, item: Item, result: Verdict) -> Kept | None:
        """Convert a verdict for storage; one without a comparison is not stored."""
        if result.word == NOT_COMPARED:
            return None
        wrong = 0 if result.word == DIFFERS else None
        return finding.to_kept(finding.Finding(
            self.named(item), result.word, wrong, lines=result.lines,
            note=json.dumps([result.name, result.smallest])))

    def known(self, kept: Kept) -> Verdict:
        """Convert a stored row back to a verdict.

        :raises ValueError: when the stored row is malformed.
        """
        stored = finding.from_kept(kept)
        try:
            row = json.loads(stored.note)
        except RecursionError as error:
            raise ValueError("malformed verdict") from error
        if stored.word not in WORDS or not (
                isinstance(row, list) and len(row) == 2 and all(type(text) is str for text in row)):
            raise ValueError("malformed verdict")
        return Verdict(row[0], stored.word, stored.lines, row[1])


def random_program(seed: int) -> Item:
    """Return the random program of a seed."""
    return f"{SEED}{seed}", generated(seed).text


def script(path: Path) -> Item:
    """Return the program in a file.

    :raises KinstError: the file cannot be read, is too large, or is not text.
    """
    try:
        return str(path), bytes(taken(path, MAX_SCRIPT).content).decode("utf-8")
    except UnicodeDecodeError:
        raise KinstError(f"{path}: is not UTF-8 text; give the source of a D program") from None


def judged(judge: Judge, item: Item) -> Verdict:
    """Run a program on both tracers; if the outcomes differ, look for the smallest that differs."""
    name, source = item
    try:
        theirs = judge.theirs(source)
    except TracerError as error:
        return Verdict(name, NOT_COMPARED, (str(error),))
    if theirs.status is None:
        return Verdict(name, NOT_COMPARED, (
            f"it does not end under dtrace(1): {theirs.errors.strip()}",))
    if theirs.limited:
        return Verdict(name, LIMITED)
    ours = judge.ours(source)
    found = judge.compared(theirs, ours)
    if not found:
        return Verdict(name, REFUSED if theirs.refused else
                       LIMITED if unaligned(theirs, ours) else AGREES)
    wanted = kinds(found)

    def differs(smaller: Node) -> bool:
        return set() < kinds(judge.differences(smaller.text)) <= wanted

    program = divided(source)
    if name.startswith(SEED):
        program = generated(int(name.removeprefix(SEED)))
    smallest = shrunk(program, differs)
    return Verdict(name, DIFFERS, tuple(judge.differences(smallest.text)), smallest.text)
