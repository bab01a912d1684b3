"""Pairs of calls from a corpus, ranked by the memory that the calls of a pair share.

Pairs in which one call writes memory that the other reads come first, as in Snowboard (Gong and
others, SOSP 2021).
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dtrace.calls.c_file import c_file_words
from dtrace.calls.calls import Evaluation, Statement, check, parse
from dtrace.calls.prototypes import Prototypes
from dtrace.calls.strings import CallSyntaxError
from emu.elf.image import Image
from emu.host.append_file import appending
from emu.host.errors import KinstError
from emu.unicorn.machine import UnicornMachine
from images import boots, catalog
from images.systems import with_disks
from kinst.verify.sweep.task import Task
from kinst.verify.sweep.workers import check_identity
from kinst_emu.explore.exploration import for_runs, made_stage
from kinst_emu.explore.explorer import Explorer, Search
from kinst_emu.explore.programs import begin_programs, command_of, is_command, with_c_files
from kinst_emu.explore.stage import Stage
from kinst_emu.explore.threads import CURRENT, begin_runs, caller_of, make_threads

MAX_CALLS, MAX_CORPUS = 5000, 1 << 20  # maximum number of calls and of bytes in a corpus
MAX_STORE = 1 << 30  # maximum size of a store in bytes
RUN_LIMIT = 5_000_000  # instruction budget of a call from a corpus


@dataclass(frozen=True)
class CorpusCall:
    """A line of a corpus, which is a call or a program.

    :param program: statements of the call; empty: a program.
    :param command: shell command that starts the program; empty: a call.
    """

    text: str
    program: list[Statement]
    command: str = ""


def read_corpus(path: Path, image: Image, prototypes: Prototypes | None) -> list[CorpusCall]:
    """Read a corpus with one call per line and comments that begin with ``#``.

    :raises KinstError: the file cannot be read, or a line is not a call; the message has its
        number.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CORPUS + 1)
    except OSError as error:
        raise KinstError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_CORPUS:
        raise KinstError(f"{path}: larger than {MAX_CORPUS >> 10} KiB; split the corpus")
    return read_lines(str(path), raw.decode("utf-8", "replace").splitlines(), image, prototypes)


def read_lines(path: str, lines: Sequence[str], image: Image, prototypes: Prototypes | None
               ) -> list[CorpusCall]:
    """Parse the lines of a corpus.

    :param path: name of the corpus for error messages.
    :raises KinstError: a line is not a call; the message has its number.
    """
    calls: dict[str, CorpusCall] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            program = [] if is_program(text) else parse(text)
            if is_command(text):
                command_of(text)
            elif program:
                check(image, program, prototypes, [CURRENT])
        except (CallSyntaxError, KinstError) as error:
            raise KinstError(f"{path}:{number}: {error}") from None
        calls.setdefault(text, CorpusCall(text, program))
        if len(calls) > MAX_CALLS:
            raise KinstError(f"{path}:{number}: more than {MAX_CALLS} calls; split the corpus")
    if not calls:
        raise KinstError(f"{path}: contains no calls; give one per line, e.g. uifind(7)")
    return list(calls.values())


def is_program(text: str) -> bool:
    """Return whether a line of a corpus is a shell command or a C file rather than a call."""
    return is_command(text) or bool(c_file_words(text))


def with_programs(image: Image, corpus: Sequence[CorpusCall]) -> tuple[Image, list[CorpusCall]]:
    """Compile the C files of a corpus into the image, and set the command of each program.

    :return: the new image and corpus.
    :raises KinstError: a file cannot be read or compiled.
    """
    image, texts = with_c_files(image, [one.text for one in corpus])
    return image, [replace(one, command=text) if is_command(text) else one
                   for one, text in zip(corpus, texts, strict=True)]


@dataclass
class Use:
    """Memory granules that a call reads, and granules that it writes.

    :param wrong: reason that the call cannot be explored; empty if it can.
    """

    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    wrong: str = ""


@dataclass
class PairStage:
    """A booted machine with two threads, on which any number of pairs can be started."""

    image: Image
    memory: int
    prototypes: Prototypes | None
    machine: UnicornMachine = field(init=False)

    def __post_init__(self) -> None:
        self._results = self.prototypes or Prototypes(self.image)
        self.machine = machine = boots.booted(self.image, self.memory)
        self._booted = machine.mark()
        self._threads = make_threads(machine, 2, caller_of(machine))
        self._mark = machine.mark()

    def begin(self, one: CorpusCall, other: CorpusCall) -> Stage:
        """Restore the machine's initial state, and start a pair of calls.

        :raises KinstError: a call cannot begin.
        """
        machine = self.machine
        if one.command:
            machine.back_to(self._booted)
            return made_stage(
                machine, begin_programs(machine, [one.command, other.command]), RUN_LIMIT)
        machine.back_to(self._mark)
        caller = caller_of(machine, RUN_LIMIT)
        started = begin_runs(machine, self._threads, [(c.text, c.program) for c in (one, other)],
                             Evaluation(caller, self.prototypes), self.prototypes, self._results)
        return made_stage(machine, started, RUN_LIMIT)

    def use(self, call: CorpusCall) -> Use:
        """Execute a call alone, and return the granules that the call reads and writes."""
        try:
            found = self.begin(call, call).uses()
        except KinstError as error:
            return Use(wrong=str(error))
        if found is None:
            return Use(wrong="it does not finish")
        reads, writes = found
        return Use(frozenset(reads), frozenset(writes))


def ranked(uses: Sequence[Use], programs: Sequence[bool] = ()) -> list[tuple[int, int]]:
    """Return the pairs in which one call writes memory that the other uses, best pair first.

    A pair scores higher the more granules its calls share, and the fewer calls use these granules.

    :param programs: whether each call is a program; a program is never paired with a call.
    :return: pairs of indexes into ``uses``.
    """
    often = Counter(place for use in uses for place in use.reads | use.writes)
    weight = {place: 1 / math.log2(1 + n) if n < len(uses) else 0.0 for place, n in often.items()}
    scored = []
    for i, one in enumerate(uses):
        for j in range(i, len(uses)):
            if programs and programs[i] != programs[j]:
                continue
            other = uses[j]
            common = (one.writes & (other.reads | other.writes)) | (other.writes & one.reads)
            if common:
                scored.append((-sum(weight[place] for place in common), i, j))
    return [(i, j) for _score, i, j in sorted(scored)]


Row = dict[str, object]  # entry of the store: the findings of one pair


def explore_pair(stage: PairStage, one: CorpusCall, other: CorpusCall, schedules: int, seed: int
                 ) -> Row:
    """Explore a pair of calls, and return the pair's row for the store."""
    row: Row = {"pair": [one.text, other.text], "kernel": stage.image.identity}
    try:
        explorer = Explorer(stage.begin(one, other), Search(limit=schedules, seed=seed))
        explored = explorer.run()
    except KinstError as error:
        return {**row, "error": str(error)[:500], "tried": 0, "findings": []}
    return {**row, "tried": explored.tried, "findings": [
        {"kind": found.kind, "message": found.message[:500], "schedule": found.schedule}
        for found in explored.findings]}


Prepared = tuple[PairStage, Sequence[CorpusCall]]


@dataclass(frozen=True)
class PairTask(Task[tuple[int, int], Row, Prepared]):
    """Task that explores pairs on a stage in this process or in forks of this process.

    The items are pairs of indexes into the corpus.

    :param stage: ``id`` of the stage.
    :param schedules: maximum number of schedules to execute for each pair.
    :param seed: random seed.
    """

    stage: int
    schedules: int
    seed: int
    copied = True

    def prepare(self) -> Prepared:
        """Raise LookupError, since a stage exists only in its creator process and its forks."""
        raise LookupError("the booted machine exists only in the process that created it and "
                          "in forks of that process")

    def results(self, prepared: Prepared, items: Sequence[tuple[int, int]]) -> list[Row]:
        """Explore pairs of calls, and return the pairs' rows for the store."""
        stage, corpus = prepared
        return [explore_pair(stage, corpus[one], corpus[other], self.schedules, self.seed)
                for one, other in items]


@dataclass(frozen=True)
class ClusterPairTask(PairTask):
    """Task that explores pairs on a stage that each worker of a cluster sets up itself.

    The kernel and the C files must have the same paths on the workers as on this host.

    :param identity: identity of the kernel image.
    :param based: whether the base system that was fetched with the kernel is booted.
    :param lines: lines of the corpus.
    """

    kernel: str
    modules: tuple[str, ...]
    identity: str
    based: bool
    lines: tuple[str, ...]
    memory: int
    unchecked: bool
    cpus: int | None

    def prepare(self) -> Prepared:
        """Boot the kernel and read the corpus in the worker.

        :raises KinstError: the worker does not have this kernel.
        """
        image = with_disks(catalog.find(self.kernel, list(self.modules)), [], self.based)
        image = for_runs(image, 2, self.cpus)
        check_identity(image, self.identity)
        prototypes = None if self.unchecked else Prototypes(image)
        image, corpus = with_programs(
            image, read_lines("the corpus", self.lines, image, prototypes))
        return PairStage(image, self.memory, prototypes), corpus


class PairStore:
    """Store of the pairs' findings in a file, so that an interrupted search can resume.

    Each line is a JSON object.  Rows of other searches, and of pairs that could not be explored,
    are ignored.

    :param asked: parameters of the search, from ``asked_of``.
    :raises KinstError: the file is not a store of pairs.
    """

    def __init__(self, path: Path | None, identity: str, asked: str) -> None:
        self._path, self._asked = path, asked
        self.rows: dict[tuple[str, str], dict[str, object]] = {}
        self._broken = False  # whether the file's last line is incomplete
        if path is None or not path.exists():
            return
        if path.stat().st_size > MAX_STORE:
            raise KinstError(f"{path}: larger than {MAX_STORE >> 20} MiB; give another file")
        content = path.read_bytes()
        self._broken = bool(content) and not content.endswith(b"\n")
        for number, line in enumerate(content.splitlines(), 1):
            try:
                row = json.loads(line)
                one, other = row["pair"]
                if (row["kernel"] == identity and isinstance(row["findings"], list)
                        and row.get("asked") == asked and not row.get("error")):
                    self.rows[str(one), str(other)] = row
            except (ValueError, KeyError, TypeError, RecursionError):
                if number == 1:
                    raise KinstError(f"{path}: not a store of pairs; give another file") from None
                # The last line is incomplete if the search was killed while writing it.

    def add(self, row: dict[str, object]) -> None:
        """Add the row of a pair to the store and to its file."""
        pair = row["pair"]
        assert isinstance(pair, list)
        row["asked"] = self._asked
        self.rows[pair[0], pair[1]] = row
        if self._path is not None:
            with appending(str(self._path), "strict") as file:
                file.write("\n" * self._broken + json.dumps(row) + "\n")
            self._broken = False

    def found(self, pairs: Iterable[tuple[int, int]], corpus: Sequence[CorpusCall]) -> int:
        """Return the number of the given pairs that have findings in the store."""
        rows = (self.rows.get((corpus[i].text, corpus[j].text)) for i, j in pairs)
        return sum(row is not None and bool(row["findings"]) for row in rows)


def asked_of(schedules: int, seed: int, unchecked: bool) -> str:
    """Describe the parameters of a search as text, for comparison with the text in stored rows."""
    # This text is part of the file format: old stores contain it.
    return f"orders {schedules}, seed {seed}" + ", unchecked" * unchecked


def left(pairs: Iterable[tuple[int, int]], corpus: Sequence[CorpusCall], store: PairStore
         ) -> Iterator[tuple[int, int]]:
    """Yield the pairs that are not in the store."""
    for i, j in pairs:
        if (corpus[i].text, corpus[j].text) not in store.rows:
            yield i, j
