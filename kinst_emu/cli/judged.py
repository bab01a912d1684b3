"""Run D programs by the guest's dtrace(1) and by kdtrace, and compare the outcomes."""

import contextlib
import io
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dtrace.judge.generator import generated
from dtrace.judge.outcome import Outcome, differences, kinds
from dtrace.judge.program import Node
from dtrace.judge.scripts import divided
from dtrace.judge.shrink import shrunk
from emu.elf.image import Image
from emu.host.errors import KinstError
from images import catalog
from images.guest_tracer import GuestTracer, TracerError
from images.systems import with_disks
from kinst.verify.laboratory import finding
from kinst.verify.sweep.store import Kept
from kinst.verify.sweep.sweep import KeptTask
from kinst.verify.sweep.workers import check_identity
from kinst_emu.cli.script import trace

SEED = "seed "  # begins the name of a random program; other names are those of files
WORDS = AGREES, REFUSED, LIMITED, DIFFERS, NOT_COMPARED = (
    "agrees", "both refuse it", "beyond a limit", "differs", "not compared")


class Judge:
    """The two tracers, with the same kernel and base system.

    :param memory: guest RAM in bytes.
    :raises KinstError: the system does not boot, or has no dtrace(1).
    """

    def __init__(self, image: Image, memory: int) -> None:
        self._kernel, self._memory = image.path, memory
        self._theirs = GuestTracer(image, "", memory)

    def theirs(self, program: str) -> Outcome:
        """Run a program by the guest's dtrace(1).

        :raises TracerError: the program cannot be typed.
        """
        judged = self._theirs.run(program)
        return Outcome(judged.status, judged.output, judged.errors)

    def ours(self, program: str) -> Outcome:
        """Run a program by kdtrace."""
        output, errors = io.StringIO(), io.StringIO()
        with tempfile.NamedTemporaryFile("w", suffix=".d") as file:
            file.write(program)
            file.flush()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
                try:
                    status = trace(["-k", str(self._kernel), "--base", "--memory",
                                    str(self._memory >> 20), "-s", file.name])
                except KinstError as error:
                    print(f"dtrace: {error}", file=errors)
                    status = 1
        return Outcome(status, output.getvalue(), errors.getvalue())

    def differences(self, program: str) -> list[str]:
        """Run a program twice; return lines that describe how the outcomes differ.

        :raises TracerError: the program cannot be typed.
        """
        return differences(self.theirs(program), self.ours(program))


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
class JudgeTask(KeptTask[str, Verdict, Judge]):
    """Task that runs programs, named as in ``Verdict``, and makes those that differ smaller.

    :param identity: identity of the kernel; a worker with another one refuses.
    :param memory: guest RAM in bytes.
    """

    kernel: str
    identity: str
    memory: int

    def prepare(self) -> Judge:
        """Boot the base system and start its dtrace(1).

        :raises KinstError: this is not possible, or the kernel is not the expected one.
        """
        image = catalog.find(self.kernel)
        check_identity(image, self.identity)
        return Judge(with_disks(image, [], base=True), self.memory)

    def results(self, prepared: Judge, items: Sequence[str]) -> list[Verdict]:
        """Run programs on both tracers."""
        return [judged(prepared, name) for name in items]

    def named(self, item: str) -> bytes:
        """Return the key under which a store keeps a verdict: the program's source."""
        return source_of(item).text.encode()

    def kept(self, _item: str, result: Verdict) -> Kept:
        """Convert a verdict for storage."""
        wrong = 0 if result.word == DIFFERS else None
        return finding.to_kept(finding.Finding(
            self.named(result.name), result.word, wrong, lines=result.lines,
            note=json.dumps([result.name, result.smallest])))

    def known(self, kept: Kept) -> Verdict:
        """Convert a stored row back to a verdict.

        :raises ValueError: when the stored row is malformed.
        """
        stored = finding.from_kept(kept)
        row = json.loads(stored.note)
        if stored.word not in WORDS or not (
                isinstance(row, list) and len(row) == 2 and all(type(text) is str for text in row)):
            raise ValueError("malformed verdict")
        return Verdict(row[0], stored.word, stored.lines, row[1])


def source_of(name: str) -> Node:
    """Return the program with a name: a random one, or that in a file.

    :raises KinstError: the file cannot be read.
    """
    if name.startswith(SEED):
        return generated(int(name.removeprefix(SEED)))
    try:
        return divided(Path(name).read_text("utf-8"))
    except OSError as error:
        raise KinstError(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KinstError(f"{name}: is not text") from None


def judged(judge: Judge, name: str) -> Verdict:
    """Run a program on both tracers; if the outcomes differ, look for the smallest that differs."""
    program = source_of(name)
    try:
        theirs = judge.theirs(program.text)
    except TracerError as error:
        return Verdict(name, NOT_COMPARED, (str(error),))
    if theirs.limited:
        return Verdict(name, LIMITED)
    found = differences(theirs, judge.ours(program.text))
    if not found:
        return Verdict(name, REFUSED if theirs.refused else AGREES)
    wanted = kinds(found)

    def differs(smaller: Node) -> bool:
        return set() < kinds(judge.differences(smaller.text)) <= wanted

    smallest = shrunk(program, differs)
    return Verdict(name, DIFFERS, tuple(judge.differences(smallest.text)), smallest.text)
