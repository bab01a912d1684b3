"""SQLite store for the results of sweeps.

A result belongs to a subject (what was judged: kinst-emu's relocation at one version, or a module
by its build ID), an item (an encoding or a call), a seed and a number of states.  For each build,
the store also keeps which items a kernel has, and where, so that a second kernel runs only new
items and two builds can be compared.  Results are written during the sweep: a killed sweep resumes
where it was.  The tables call items encodings, because the first sweeps had no other items.
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
APPLICATION = 0x4B494E53  # "KINS": SQLite application ID in the file's header
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
QUESTIONS = 500  # maximum number of items in a query
MAX_DETAIL = 16 << 20  # maximum size of a value in bytes
MAX_TABLES, MAX_BUILDS = 100, 100_000
PATIENCE = 60  # seconds to wait while another sweep has the file locked


@dataclass(frozen=True)
class Key:
    """Key under which a store keeps the results of a sweep.

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
    """Result in its stored form.

    :param item: bytes of an encoding, or text of a call.
    :param word: short result.
    :param detail: all other data of the result, in the format of its task.
    """

    item: bytes
    word: str
    detail: str = ""


@dataclass(frozen=True)
class Build:
    """Kernel build that a sweep has tested.

    :param identity: identity of the kernel.
    :param subject: what was judged; ``kind`` is as in ``Key``.
    """

    number: int
    identity: str
    kind: str
    subject: str
    architecture: str
    path: str
    compiler: str


# Errors that a damaged or foreign file causes.  SQLite's messages may quote unprintable data.
DAMAGE = (sqlite3.Error, ValueError, TypeError, KeyError, RecursionError)
# SQLite's codes for errors of the host, which do not mean that the file is damaged.
OF_THE_HOST = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN,
               sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM)


def _kept(item: object, word: object, detail: object) -> Kept:
    """Build a result from a database row.

    :raises ValueError: if a value has the wrong type.
    """
    if not (isinstance(item, bytes) and isinstance(word, str) and isinstance(detail, str)):
        raise ValueError("a result has a value of the wrong type")
    return Kept(item, word, detail)


def _expected() -> set[tuple[object, ...]]:
    """Return the definitions of a store's tables."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        return Store._schema(db)


class Store:
    """SQLite file with the results of sweeps.

    :raises KinstError: if the file cannot be used, is damaged, or is not a result store.
    """

    def __init__(self, path: Path, must_exist: bool = False) -> None:
        self.path = path
        if must_exist and not path.is_file():
            raise KinstError(f"{path}: the file does not exist; --store creates it")
        with self.reading():
            self._db = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
            self._db.execute("PRAGMA trusted_schema = OFF")
            self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_DETAIL)
            application, version = self._begun(must_exist)
            if application != APPLICATION:
                raise KinstError(f"{path}: not a result store (--store creates one)")
            elif version != FORMAT:
                raise KinstError(f"{path}: store format {version} is not supported; this program "
                                 f"reads format {FORMAT}")
            if self._schema(self._db) != _expected():
                raise KinstError(f"{path}: damaged: its tables do not have the format of a result "
                                 "store")
            self._db.execute("PRAGMA synchronous = NORMAL")
        self._words: dict[str, int] = {}

    @staticmethod
    def _schema(db: sqlite3.Connection) -> set[tuple[object, ...]]:
        """Return the definitions of tables, indexes, views and triggers.

        Foreign ones must be noticed: a query of a view may never end.
        """
        return set(db.execute(f"SELECT type, name, sql FROM sqlite_master LIMIT {MAX_TABLES}"))

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Raise KinstError if an access to the store's file fails in the ``with`` block.

        :raises KinstError: if the file is damaged or cannot be used.
        """
        try:
            yield
        except DAMAGE as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # SQLite's primary result code
            problem = ("cannot be written" if code == sqlite3.SQLITE_FULL else
                    "cannot be used" if code in OF_THE_HOST else "damaged")
            raise KinstError(f"{self.path}: {problem}: {printable(error)}") from None

    def _begun(self, must_exist: bool) -> tuple[int, int]:
        """Create the tables in a new file; return the application ID and the format.

        If several sweeps open a new file at once, one of them creates the tables.
        """
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
        """Close the file."""
        self._db.close()

    def _one(self, question: str, values: Sequence[object]) -> int | None:
        row = self._db.execute(question, values).fetchone()
        return None if row is None else int(row[0])

    def _subject(self, kind: str, name: str) -> int:
        self._db.execute("INSERT OR IGNORE INTO subject (kind, name) VALUES (?, ?)", (kind, name))
        number = self._one("SELECT id FROM subject WHERE kind = ? AND name = ?", (kind, name))
        if number is None:
            raise ValueError("a row is missing after it was inserted")
        return number

    def _encodings(self, architecture: str, codes: Sequence[bytes]) -> dict[bytes, int]:
        self._db.executemany("INSERT OR IGNORE INTO encoding (architecture, code) VALUES (?, ?)",
                             ((architecture, code) for code in codes))
        return self._numbers(architecture, codes)

    def _numbers(self, architecture: str, codes: Sequence[bytes]) -> dict[bytes, int]:
        numbers: dict[bytes, int] = {}
        for start in range(0, len(codes), QUESTIONS):
            batch = codes[start : start + QUESTIONS]
            marks = ", ".join("?" * len(batch))
            numbers |= {bytes(code): number for code, number in self._db.execute(
                f"SELECT code, id FROM encoding WHERE architecture = ? AND code IN ({marks})",
                (architecture, *batch))}
        return numbers

    # -- writing ------------------------------------------------------------------------------

    def begin(self, key: Key, identity: str, path: str, compiler: str,
              places: dict[bytes, str]) -> None:
        """Record the build that a sweep tests, and the places of the sweep's items."""
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
        """Store results in one transaction."""
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
            number = self._one("SELECT id FROM word WHERE text = ?", (text,))
            if number is None:
                raise ValueError("a row is missing after it was inserted")
            self._words[text] = number
        return self._words[text]

    # -- reading ------------------------------------------------------------------------------

    def known(self, key: Key, items: Sequence[bytes]) -> Iterator[Kept]:
        """Yield the stored results of the given items."""
        with self.reading():
            subject = self._one("SELECT id FROM subject WHERE kind = ? AND name = ?",
                                (key.kind, key.subject))
            if subject is None:
                return
            for start in range(0, len(items), QUESTIONS):
                batch = items[start : start + QUESTIONS]
                marks = ", ".join("?" * len(batch))
                for row in self._db.execute(
                        "SELECT code, word.text, detail FROM result JOIN encoding ON "
                        "encoding.id = result.encoding JOIN word ON word.id = result.word WHERE "
                        "subject = ? AND seed = ? AND states = ? AND architecture = ? AND code IN "
                        f"({marks})", (subject, key.seed, key.states, key.architecture, *batch)):
                    yield _kept(*row)

    def builds(self) -> list[Build]:
        """Return all builds in the order in which their sweeps began."""
        with self.reading():
            builds = [Build(int(number), *(str(text) for text in rest)) for number, *rest in
                     self._db.execute(
                         "SELECT build.id, identity, kind, name, architecture, path, compiler FROM "
                         "build JOIN subject ON subject.id = build.subject ORDER BY build.id "
                         f"LIMIT {MAX_BUILDS}")]
        for build in builds:
            if build.architecture not in ARCHITECTURES:
                raise KinstError(f"{self.path}: damaged: unknown architecture "
                                 f"'{printable(build.architecture, 40)}'")
        return builds

    def results(self, build: Build) -> Iterator[tuple[str, list[Kept]]]:
        """Yield (place, results) for each item of a build; skip items without results.

        An item may have several: for different seeds and numbers of states.
        """
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
        """Return all results in a fixed order, to compare two stores of the same sweep."""
        with self.reading():
            return list(self._db.execute(
                "SELECT kind, name, architecture, code, seed, states, word.text, detail FROM "
                "result JOIN subject ON subject.id = subject JOIN encoding ON encoding.id = "
                "encoding JOIN word ON word.id = word ORDER BY kind, name, architecture, code, "
                "seed, states"))
