"""Results of sweeps in a file: SQLite.

A result is of a subject (what was judged: our relocation at one version, a module by its build id),
an item (an encoding, a call), a seed and a number of states.  Which items a kernel has, and where,
is kept for each build, so that a second kernel runs only what is new, and two can be compared.
What a sweep has done is written as it goes: a killed one goes on where it was.  The tables call
items encodings, as the first sweeps were of nothing else.
"""

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from emu.arch.architectures import ARCHITECTURES
from emu.host.errors import KinstError
from emu.host.printable import printable

FORMAT = 1
APPLICATION = 0x4B494E53  # "KINS": what this file is, for the file's header
SCHEMA = """
CREATE TABLE subject (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL,
    UNIQUE (kind, name));
CREATE TABLE build (id INTEGER PRIMARY KEY, identity TEXT NOT NULL, subject INTEGER NOT NULL
    REFERENCES subject, architecture TEXT NOT NULL, path TEXT NOT NULL, compiler TEXT NOT NULL,
    begun REAL NOT NULL, UNIQUE (identity, subject));
CREATE TABLE encoding (id INTEGER PRIMARY KEY, architecture TEXT NOT NULL, code BLOB NOT NULL,
    UNIQUE (architecture, code));
CREATE TABLE result (subject INTEGER NOT NULL REFERENCES subject, encoding INTEGER NOT NULL
    REFERENCES encoding, seed INTEGER NOT NULL, states INTEGER NOT NULL, word INTEGER NOT NULL,
    detail TEXT NOT NULL, PRIMARY KEY (subject, encoding, seed, states)) WITHOUT ROWID;
CREATE TABLE word (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE place (build INTEGER NOT NULL REFERENCES build, encoding INTEGER NOT NULL
    REFERENCES encoding, place TEXT NOT NULL, PRIMARY KEY (build, encoding)) WITHOUT ROWID;
"""
QUESTIONS = 500  # questions at once
MAX_DETAIL = 16 << 20  # bytes of a value
MAX_TABLES, MAX_BUILDS = 100, 100_000
PATIENCE = 60  # seconds that another sweep may hold the file


@dataclass(frozen=True)
class Key:
    """What a sweep's results are of.

    :param kind: ``relocate``, ``trial`` or ``xval``.
    :param subject: what was judged.
    """

    kind: str
    subject: str
    architecture: str
    seed: int
    states: int


@dataclass(frozen=True)
class Kept:
    """A result, as a store keeps it.

    :param item: the bytes of an encoding, the text of a call.
    :param word: what became of it, in a few words; ``detail``: all else, as its task writes it.
    """

    item: bytes
    word: str
    detail: str = ""


@dataclass(frozen=True)
class Build:
    """:param identity: of the kernel.
    :param subject: what was judged on it; ``kind`` as in ``Key``.
    """

    number: int
    identity: str
    kind: str
    subject: str
    architecture: str
    path: str
    compiler: str


# What reading a file that somebody else has written comes to; SQLite's own words for it may be no
# text.
DAMAGE = (sqlite3.Error, ValueError, TypeError, KeyError, RecursionError)
# Errors that say nothing of the file's content.
OF_THE_HOST = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN,
               sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM)


def _kept(item: object, word: object, detail: object) -> Kept:
    """:raises ValueError: for what no sweep has written."""
    if not (isinstance(item, bytes) and isinstance(word, str) and isinstance(detail, str)):
        raise ValueError("a result that is none")
    return Kept(item, word, detail)


def _expected() -> set[tuple[object, ...]]:
    """What a store's tables are."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        return Store._schema(db)


class Store:
    """:raises KinstError: when the file cannot be used, is damaged, or is none of ours."""

    def __init__(self, path: Path, must_exist: bool = False) -> None:
        self.path = path
        if must_exist and not path.is_file():
            raise KinstError(f"{path}: no such file; --store writes one")
        with self.reading():
            self._db = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
            self._db.execute("PRAGMA trusted_schema = OFF")
            self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_DETAIL)
            application, version = self._begun(must_exist)
            if application != APPLICATION:
                raise KinstError(f"{path}: is no store of results (--store writes one)")
            elif version != FORMAT:
                raise KinstError(f"{path}: a store of format {version}, this program has {FORMAT}")
            if self._schema(self._db) != _expected():
                raise KinstError(f"{path}: damaged: its tables are not a store's")
            self._db.execute("PRAGMA synchronous = NORMAL")
        self._words: dict[str, int] = {}

    @staticmethod
    def _schema(db: sqlite3.Connection) -> set[tuple[object, ...]]:
        """All tables, indexes, views and triggers: views may be without end."""
        return set(db.execute(f"SELECT type, name, sql FROM sqlite_master LIMIT {MAX_TABLES}"))

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Whatever reads or writes the file, or makes something of what it has, is inside this.

        :raises KinstError: when the file is damaged, or cannot be used.
        """
        try:
            yield
        except DAMAGE as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without what says more of it
            what = ("cannot be written" if code == sqlite3.SQLITE_FULL else
                    "cannot be used" if code in OF_THE_HOST else "damaged")
            raise KinstError(f"{self.path}: {what}: {printable(error)}") from None

    def _begun(self, must_exist: bool) -> tuple[int, int]:
        """What the file is, and its format; a new one is made, by one of those that want to."""
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables and not must_exist:
            self._db.execute("PRAGMA journal_mode = WAL")
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
                if not tables:
                    for statement in SCHEMA.split(";\n"):
                        self._db.execute(statement)
                    self._db.execute(f"PRAGMA application_id = {APPLICATION}")
                    self._db.execute(f"PRAGMA user_version = {FORMAT}")
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        return int(application), int(version)

    def close(self) -> None:
        self._db.close()

    def _one(self, question: str, values: Sequence[object]) -> int | None:
        row = self._db.execute(question, values).fetchone()
        return None if row is None else int(row[0])

    def _subject(self, kind: str, name: str) -> int:
        self._db.execute("INSERT OR IGNORE INTO subject (kind, name) VALUES (?, ?)", (kind, name))
        found = self._one("SELECT id FROM subject WHERE kind = ? AND name = ?", (kind, name))
        if found is None:
            raise ValueError("what was written is not there")
        return found

    def _encodings(self, architecture: str, codes: Sequence[bytes]) -> dict[bytes, int]:
        self._db.executemany("INSERT OR IGNORE INTO encoding (architecture, code) VALUES (?, ?)",
                             ((architecture, code) for code in codes))
        return self._numbers(architecture, codes)

    def _numbers(self, architecture: str, codes: Sequence[bytes]) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for at in range(0, len(codes), QUESTIONS):
            some = codes[at : at + QUESTIONS]
            marks = ", ".join("?" * len(some))
            found |= {bytes(code): number for code, number in self._db.execute(
                f"SELECT code, id FROM encoding WHERE architecture = ? AND code IN ({marks})",
                (architecture, *some))}
        return found

    # -- writing ------------------------------------------------------------------------------

    def begin(self, key: Key, identity: str, path: str, compiler: str,
              places: dict[bytes, str]) -> None:
        """A sweep begins: what build it is of, and what encodings that has."""
        with self.reading(), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            subject = self._subject(key.kind, key.subject)
            self._db.execute(
                "INSERT OR IGNORE INTO build (identity, subject, architecture, path, compiler, "
                "begun) VALUES (?, ?, ?, ?, ?, ?)",
                (identity, subject, key.architecture, path, compiler, time.time()))
            build = self._one("SELECT id FROM build WHERE identity = ? AND subject = ?",
                              (identity, subject))
            numbers = self._encodings(key.architecture, list(places))
            self._db.executemany(
                "INSERT OR REPLACE INTO place (build, encoding, place) VALUES (?, ?, ?)",
                ((build, numbers[code], place) for code, place in places.items()))

    def put(self, key: Key, results: Sequence[Kept]) -> None:
        """Keep results, all of them or none."""
        with self.reading(), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            subject = self._subject(key.kind, key.subject)
            numbers = self._encodings(key.architecture, [one.item for one in results])
            self._db.executemany(
                "INSERT OR REPLACE INTO result (subject, encoding, seed, states, word, detail) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                ((subject, numbers[one.item], key.seed, key.states, self._word(one.word),
                  one.detail) for one in results))

    def _word(self, text: str) -> int:
        if text not in self._words:
            self._db.execute("INSERT OR IGNORE INTO word (text) VALUES (?)", (text,))
            found = self._one("SELECT id FROM word WHERE text = ?", (text,))
            if found is None:
                raise ValueError("what was written is not there")
            self._words[text] = found
        return self._words[text]

    # -- reading ------------------------------------------------------------------------------

    def known(self, key: Key, items: Sequence[bytes]) -> Iterator[Kept]:
        """The results that are there already."""
        with self.reading():
            subject = self._one("SELECT id FROM subject WHERE kind = ? AND name = ?",
                                (key.kind, key.subject))
            if subject is None:
                return
            for at in range(0, len(items), QUESTIONS):
                some = items[at : at + QUESTIONS]
                marks = ", ".join("?" * len(some))
                for row in self._db.execute(
                        "SELECT code, word.text, detail FROM result JOIN encoding ON "
                        "encoding.id = result.encoding JOIN word ON word.id = result.word WHERE "
                        "subject = ? AND seed = ? AND states = ? AND architecture = ? AND code IN "
                        f"({marks})", (subject, key.seed, key.states, key.architecture, *some)):
                    yield _kept(*row)

    def builds(self) -> list[Build]:
        """All builds, in the order of their sweeps."""
        with self.reading():
            found = [Build(int(number), *(str(text) for text in rest)) for number, *rest in
                     self._db.execute(
                         "SELECT build.id, identity, kind, name, architecture, path, compiler FROM "
                         "build JOIN subject ON subject.id = build.subject ORDER BY build.id "
                         f"LIMIT {MAX_BUILDS}")]
        for build in found:
            if build.architecture not in ARCHITECTURES:
                raise KinstError(f"{self.path}: damaged: results of the architecture "
                                 f"'{printable(build.architecture, 40)}'")
        return found

    def results(self, build: Build) -> Iterator[tuple[str, list[Kept]]]:
        """(place, results) of every item of a build that has some: for several seeds and numbers of
        states."""
        with self.reading():
            rows: Iterable[tuple[bytes, str, str, str]] = self._db.execute(
                "SELECT code, place, word.text, detail FROM place JOIN encoding ON "
                "encoding.id = place.encoding JOIN build ON build.id = place.build JOIN result ON "
                "result.subject = build.subject AND result.encoding = place.encoding JOIN word ON "
                "word.id = result.word WHERE place.build = ? ORDER BY code, seed, states",
                (build.number,))
            for (code, place), group in itertools.groupby(rows, lambda row: row[:2]):
                yield str(place), [_kept(code, word, detail)
                                   for _code, _place, word, detail in group]

    def digest_rows(self) -> list[tuple[object, ...]]:
        """Everything a sweep has found, in an order of its own: two stores of one sweep are equal.
        """
        with self.reading():
            return list(self._db.execute(
                "SELECT kind, name, architecture, code, seed, states, word.text, detail FROM "
                "result JOIN subject ON subject.id = subject JOIN encoding ON encoding.id = "
                "encoding JOIN word ON word.id = word ORDER BY kind, name, architecture, code, "
                "seed, states"))
