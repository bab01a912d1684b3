"""``kinst xval --dtrace DIRECTORY --suite``: DTrace's public test suite on both tracers."""

import argparse
import contextlib
import dataclasses
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dtrace.d.language.options import Options
from dtrace.judge.outcome import Outcome
from dtrace.judge.suite import SuiteTest, tests, why_failed
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.host.errors import KinstError
from emu.host.fingerprint import our_code
from images import catalog
from images.guest_tracer import GuestTracer, TracerError
from images.systems import with_disks
from kinst.verify.laboratory import finding
from kinst.verify.sweep.store import Kept, Key
from kinst.verify.sweep.sweep import KeptTask, sweep
from kinst.verify.sweep.workers import check_identity
from kinst_emu.cli.d_sources import RELEASE, source_of
from kinst_emu.cli.judged import kdtrace, staying
from kinst_emu.cli.sweeps import Sweep, compiler_of, progress_bar

# Commands that run in the guest while a test traces, so that probes of the kernel fire: often at
# the beginning, then seldom, because a test of all functions that takes ten seconds would not end
WORK = "date; ls -l /; cat /etc/motd; sleep"
LOAD = ("( (for n in 0.1 0.2 0.2 0.2 0.5 0.5 1 2 4; do " + WORK + " $n; done; "
        "while :; do " + WORK + " 8; done) >/dev/null 2>&1 & )")
LIMIT = 6_000_000_000  # maximum number of instructions of a test under dtrace(1)
# A test of kdtrace that has not ended after 60 virtual seconds does not end.
OVER = "@@ the test has not ended @@"
OURS = f"$ {LOAD}; sleep 60; echo '{OVER}'"
BOTH, THEIRS, KDTRACE, NEITHER, NOT_RUN = WORDS = (
    "both pass", "only dtrace(1) passes", "only kdtrace passes", "neither passes", "not run")


def refuse_for_suite(arguments: argparse.Namespace) -> None:
    """Refuse options that have no meaning with ``--suite``.

    :raises KinstError: there is such an option, or no directory.
    """
    if not arguments.dtrace or len(arguments.dtrace) > 1:
        raise KinstError("--suite: needs --dtrace DIRECTORY, with the tests")
    if not Path(arguments.dtrace[0]).is_dir():
        raise KinstError(f"{arguments.dtrace[0]}: is not a directory; give one with the tests")
    for name in ("random", "seed"):
        if getattr(arguments, name) is not None:
            raise KinstError(f"--{name}: cannot be used with --suite")


Item = tuple[SuiteTest, str]  # a test, and its program after the preprocessor


@dataclass(frozen=True)
class Passed:
    """Result of a test on both tracers.

    :param word: one of ``WORDS``.
    :param why: why it failed, or was not run.
    """

    name: str
    word: str
    why: str = ""


@dataclass(frozen=True)
class SuiteTask(KeptTask[Item, Passed, GuestTracer]):
    """Task that runs tests of the suite on both tracers.

    :param identity: identity of the kernel; a worker with another one refuses.
    :param memory: guest RAM in bytes.
    """

    kernel: str
    identity: str
    memory: int

    def prepare(self) -> GuestTracer:
        """Boot the base system.

        :raises KinstError: this is not possible, or the kernel is not the expected one.
        """
        image = catalog.find(self.kernel)
        check_identity(image, self.identity)
        with staying():
            return GuestTracer(with_disks(image, [], base=True), self.memory)

    def results(self, prepared: GuestTracer, items: Sequence[Item]) -> list[Passed]:
        """Run tests on both tracers."""
        return [_passed(prepared, test, source, self.memory) for test, source in items]

    def named(self, item: Item) -> bytes:
        """Return the key under which a store keeps a test."""
        test, source = item
        return json.dumps([test.name, source, test.status, test.tag, test.options, test.output,
                           test.errors]).encode()

    def kept(self, item: Item, result: Passed) -> Kept | None:
        """Convert a result for storage; that of a test which was not run is not stored."""
        if result.word == NOT_RUN:
            return None
        return finding.to_kept(finding.Finding(
            self.named(item), result.word, note=json.dumps([result.name, result.why])))

    def known(self, kept: Kept) -> Passed:
        """Convert a stored row back to a result.

        :raises ValueError: when the stored row is malformed.
        """
        stored = finding.from_kept(kept)
        try:
            row = json.loads(stored.note)
        except RecursionError as error:
            raise ValueError("malformed result of a test") from error
        if stored.word not in WORDS or not (
                isinstance(row, list) and len(row) == 2 and all(type(text) is str for text in row)):
            raise ValueError("malformed result of a test")
        return Passed(row[0], stored.word, row[1])


def _source(test: SuiteTest, image: Image) -> str:
    """Return a test's program after the preprocessor.

    :raises KinstError: it cannot be read or preprocessed.
    """
    options = Options()
    options.set("cpp", None)
    with contextlib.redirect_stderr(io.StringIO()):
        return source_of("s", str(test.path), options, (), arch_of(image), RELEASE)


def _passed(tracer: GuestTracer, test: SuiteTest, source: str, memory: int) -> Passed:
    image = tracer.machine.image
    try:
        judged = tracer.run(source, test.options, LOAD, LIMIT)
    except TracerError as error:
        return Passed(test.name, NOT_RUN, str(error))
    theirs = why_failed(test, Outcome(judged.status, judged.output, judged.errors))
    outcome = kdtrace(image.path, memory, source, [*test.options.split(), "-c", OURS])
    if OVER in outcome.output:
        outcome = Outcome(None, outcome.output, outcome.errors)
    ours = why_failed(test, outcome)
    word = (BOTH if not (theirs or ours) else THEIRS if not theirs else
            KDTRACE if not ours else NEITHER)
    return Passed(test.name, word, "; ".join(f"{who}: {why}" for who, why in (
        ("dtrace(1)", theirs), ("kdtrace", ours)) if why))


def run_suite(image: Image, memory: int, _seed: int, arguments: argparse.Namespace) -> int:
    """Run the suite on both tracers, print a table of its classes, and return the exit status.

    :param image: the kernel with the base system.
    :param memory: guest RAM in bytes.
    :raises KinstError: there is no test, or the system has no dtrace(1).
    """
    directory = Path(arguments.dtrace[0]).absolute()
    try:
        every = list(tests(directory))
    except OSError as error:
        raise KinstError(f"{directory}: cannot be read: {error.strerror}") from None
    if not every:
        raise KinstError(f"{directory}: contains no tests (tst.*.d, err.*.d or drp.*.d)")
    task = SuiteTask(str(image.path.absolute()), image.kernel_identity, memory)
    results, items = dict[str, Passed](), list[Item]()
    for test in every:
        try:
            if test.program:
                raise KinstError(f"it needs a program of its own, {test.program}")
            items.append((test, _source(test, image)))
        except KinstError as error:
            results[test.name] = Passed(test.name, NOT_RUN, str(error))
    with Sweep(arguments) as jobs, progress_bar(len(items), "tests") as advance:
        arch = arch_of(image).name
        key = Key("xval", f"suite {our_code()} {image.identity} with {memory >> 20} MB", arch, 0, 0)
        if jobs.store is not None:
            jobs.store.begin(key, image.kernel_identity, task.kernel, compiler_of(image.path),
                             {task.named(item): "test" for item in items})
        for found in sweep(task, items, jobs.workers, jobs.store, key, 1, most=1):
            results |= {one.name: one for one in found}
            advance(len(found))
    ended = [results[test.name] for test in every]
    if all(one.word == NOT_RUN for one in ended):
        raise KinstError(f"{directory}: none of the {len(ended)} tests was run: {ended[0].why}")
    scripts = Counter(path.parent.name for path in directory.rglob("*.ksh"))
    classes = sorted({test.kind for test in every} | set(scripts))
    rows = {kind: Counter(results[test.name].word for test in every if test.kind == kind)
            for kind in classes}
    if arguments.json:
        print(json.dumps({
            "classes": {kind: {word: rows[kind][word] for word in WORDS}
                        | {"shell scripts": scripts[kind]} for kind in classes},
            "tests": [dataclasses.asdict(one) for one in ended]}))
    else:
        _print(ended, rows, scripts)
    return 1 if any(one.word == THEIRS for one in ended) else 0


def _print(found: Sequence[Passed], rows: dict[str, Counter[str]], scripts: Counter[str]) -> None:
    print(f"{'class':16} {'tests':>6} {'dtrace(1)':>10} {'kdtrace':>8} {'both':>6} {'not run':>8} "
          f"{'scripts':>8}")

    def line(name: str, row: Counter[str], left_out: int) -> None:
        print(f"{name:16} {sum(row.values()):6} {row[BOTH] + row[THEIRS]:10} "
              f"{row[BOTH] + row[KDTRACE]:8} {row[BOTH]:6} {row[NOT_RUN]:8} {left_out:8}")

    for kind, row in rows.items():
        line(kind, row, scripts[kind])
    line("all", Counter(one.word for one in found), sum(scripts.values()))
    for word in (THEIRS, KDTRACE, NEITHER, NOT_RUN):
        some = [one for one in found if one.word == word]
        if some:
            print(f"{word}:")
            for one in some:
                print(f"  {one.name}: {one.why}")
    if scripts:
        print("shell scripts are not run: they start dtrace(1) themselves")
