"""Pairs of a corpus of calls: those first in which one writes what the other reads (Snowboard; Gong
and others, SOSP 2021)."""

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
from kinst.verify.sweep.task import Task
from kinst.verify.sweep.workers import check_identity
from kinst_emu.explore.exploration import for_runs, made_stage
from kinst_emu.explore.explorer import Explorer, Search
from kinst_emu.explore.programs import begin_programs, command_of, is_command, with_c_files
from kinst_emu.explore.stage import Stage
from kinst_emu.explore.threads import CURRENT, begin_runs, caller_of, make_threads

MAX_CALLS, MAX_CORPUS = 5000, 1 << 20  # lines and bytes of a corpus
MAX_STORE = 1 << 30  # bytes
RUN_LIMIT = 5_000_000  # instructions that a call of a corpus may take


@dataclass(frozen=True)
class CorpusCall:
    """A call, or a program for the shell.

    :param command: of a program, the shell's line; empty: it is a call.
    """

    text: str
    program: list[Statement]
    command: str = ""


def read_corpus(path: Path, image: Image, prototypes: Prototypes | None) -> list[CorpusCall]:
    """One call a line; one that begins with ``#`` is a comment.

    :raises KinstError: for a file that cannot be read, or a line that is no call, naming it.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CORPUS + 1)
    except OSError as error:
        raise KinstError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_CORPUS:
        raise KinstError(f"{path}: has more than {MAX_CORPUS >> 10} KiB")
    return read_lines(str(path), raw.decode("utf-8", "replace").splitlines(), image, prototypes)


def read_lines(path: str, lines: Sequence[str], image: Image, prototypes: Prototypes | None
               ) -> list[CorpusCall]:
    """The calls of lines.

    :param path: where they are, for people.
    :raises KinstError: for a line that is no call, naming it.
    """
    found: dict[str, CorpusCall] = {}
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
        found.setdefault(text, CorpusCall(text, program))
        if len(found) > MAX_CALLS:
            raise KinstError(f"{path}:{number}: more than {MAX_CALLS} calls")
    if not found:
        raise KinstError(f"{path}: no calls are in it; give one a line, like: uifind(7)")
    return list(found.values())


def is_program(text: str) -> bool:
    """Whether a line is a program, or a file of C, and no call."""
    return is_command(text) or bool(c_file_words(text))


def with_programs(image: Image, corpus: Sequence[CorpusCall]) -> tuple[Image, list[CorpusCall]]:
    """The kernel, with the corpus' files of C compiled, and the corpus with the shell's lines.

    :raises KinstError: for a file that cannot be read or compiled.
    """
    image, texts = with_c_files(image, [one.text for one in corpus])
    return image, [replace(one, command=text) if is_command(text) else one
                   for one, text in zip(corpus, texts, strict=True)]


@dataclass
class Use:
    """What a call reads and writes, by granules; ``wrong``: why it cannot be used."""

    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    wrong: str = ""


@dataclass
class PairStage:
    """Two threads of a kernel, to which calls are given again and again."""

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
        """:raises KinstError: when a call cannot begin."""
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
        """What a call reads and writes when it runs by itself."""
        try:
            found = self.begin(call, call).uses()
        except KinstError as error:
            return Use(wrong=str(error))
        if found is None:
            return Use(wrong="it does not come to its end")
        reads, writes = found
        return Use(frozenset(reads), frozenset(writes))


def ranked(uses: Sequence[Use], programs: Sequence[bool] = ()) -> list[tuple[int, int]]:
    """The pairs in which one writes what the other uses: those first that have most in common that
    few have.

    :param programs: which are; a program and a call are no pair.
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


Row = dict[str, object]  # of the store: what was found with a pair


def explore_pair(stage: PairStage, one: CorpusCall, other: CorpusCall, orders: int, seed: int
                 ) -> Row:
    """A row of the store: what was found with a pair."""
    row: Row = {"pair": [one.text, other.text], "kernel": stage.image.identity}
    try:
        explorer = Explorer(stage.begin(one, other), Search(limit=orders, seed=seed))
        explored = explorer.run()
    except KinstError as error:
        return {**row, "error": str(error)[:500], "tried": 0, "findings": []}
    return {**row, "tried": explored.tried, "findings": [
        {"kind": found.kind, "said": found.said[:500], "schedule": found.schedule}
        for found in explored.findings]}


Prepared = tuple[PairStage, Sequence[CorpusCall]]


@dataclass(frozen=True)
class PairTask(Task[tuple[int, int], Row, Prepared]):
    """What is found with pairs, each the numbers of two lines of a corpus, by a stage that this
    process holds, and its copies.

    :param stage: its number.
    :param orders: of a pair, at the most.
    """

    stage: int
    orders: int
    seed: int
    copied = True

    def prepare(self) -> Prepared:
        raise LookupError("this process holds no such stage")

    def results(self, prepared: Prepared, items: Sequence[tuple[int, int]]) -> list[Row]:
        stage, corpus = prepared
        return [explore_pair(stage, corpus[one], corpus[other], self.orders, self.seed)
                for one, other in items]


@dataclass(frozen=True)
class ClusterPairTask(PairTask):
    """The same on a stage that each worker makes: the kernel's file, and files of C, are where they
    are here.

    :param identity: of the kernel.
    :param lines: of the corpus.
    """

    kernel: str
    modules: tuple[str, ...]
    identity: str
    lines: tuple[str, ...]
    memory: int
    unchecked: bool
    cpus: int | None

    def prepare(self) -> Prepared:
        """Boot the kernel in the worker that tries pairs.

        :raises KinstError: where the worker has no such kernel, or another one.
        """
        image = for_runs(catalog.find(self.kernel, list(self.modules)), 2, self.cpus)
        check_identity(image, self.identity)
        prototypes = None if self.unchecked else Prototypes(image)
        image, corpus = with_programs(
            image, read_lines("the corpus", self.lines, image, prototypes))
        return PairStage(image, self.memory, prototypes), corpus


class PairStore:
    """What was found, one JSON object a line: a run that was killed goes on behind it.

    :param asked: of ``asked_of``: rows of other searches do not count, nor those of pairs that
        could not be tried.
    :raises KinstError: for a file that is none.
    """

    def __init__(self, path: Path | None, identity: str, asked: str) -> None:
        self._path, self._asked = path, asked
        self.rows: dict[tuple[str, str], dict[str, object]] = {}
        self._broken = False  # the last line was not written to its end
        if path is None or not path.exists():
            return
        if path.stat().st_size > MAX_STORE:
            raise KinstError(f"{path}: has more than {MAX_STORE >> 20} MiB: give another store")
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
                    raise KinstError(f"{path}: is no store of pairs; give another file") from None
                # The line that was being written when the run was killed.

    def add(self, row: dict[str, object]) -> None:
        pair = row["pair"]
        assert isinstance(pair, list)
        row["asked"] = self._asked
        self.rows[pair[0], pair[1]] = row
        if self._path is not None:
            with appending(str(self._path), "strict") as file:
                file.write("\n" * self._broken + json.dumps(row) + "\n")
            self._broken = False


    def found(self, pairs: Iterable[tuple[int, int]], corpus: Sequence[CorpusCall]) -> int:
        """With how many of the pairs something was found before."""
        rows = (self.rows.get((corpus[i].text, corpus[j].text)) for i, j in pairs)
        return sum(row is not None and bool(row["findings"]) for row in rows)


def asked_of(orders: int, seed: int, unchecked: bool) -> str:
    """What a row of the store is of, beside the pair and the kernel (with its files)."""
    return f"orders {orders}, seed {seed}" + ", unchecked" * unchecked


def left(pairs: Iterable[tuple[int, int]], corpus: Sequence[CorpusCall], store: PairStore
         ) -> Iterator[tuple[int, int]]:
    """The pairs that the store has not."""
    for i, j in pairs:
        if (corpus[i].text, corpus[j].text) not in store.rows:
            yield i, j
