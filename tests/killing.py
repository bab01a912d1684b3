"""Commands to kill at random moments, and checks of the remaining files and processes."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import kinst_emu

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
MARK = "KINST_KILLED"  # environment variable that marks all processes of a command
PATIENCE = 2.0  # maximum time until the processes of a killed command are gone, in seconds
FIRST = 0.1  # seconds of Python's startup, during which an interrupt prints a traceback
LONGEST = 300.0  # time limit for a command that is not killed, in seconds


class LeftError(Exception):
    """Error for a killed command that left a process, a broken file or a traceback."""


def snapshot_is_whole(path: Path, kernel: str) -> None:
    """Check that a snapshot can be restored."""
    kinst_emu.open(kernel).restore(path)


def recording_is_whole(path: Path, _kernel: str) -> None:
    """Check that a recording can be replayed to its end."""
    kinst_emu.Recording(path).go("end")


def json_is_whole(path: Path, _kernel: str) -> None:
    """Check that each line of a file is complete JSON."""
    for line in path.read_text().splitlines(keepends=True):
        json.loads(line)
        if not line.endswith("\n"):
            raise LeftError(f"{path.name}: the last line is truncated: {line[-40:]!r}")


def store_is_whole(path: Path, _kernel: str) -> None:
    """Check the integrity of a result store, which is an SQLite database.

    It is opened for writing, as by the next command, so that SQLite can undo what was unfinished.
    """
    with sqlite3.connect(f"file:{path}?mode=rw", uri=True) as store:
        (answer,) = store.execute("PRAGMA integrity_check").fetchone()
    if answer != "ok":
        raise LeftError(f"{path.name}: fails the integrity check of SQLite: {answer}")


@dataclass(frozen=True)
class Command:
    """A kinst command and the files that it writes.

    :param words: the command's arguments; ``{kernel}`` stands for a kernel, ``{races}`` for the
        kernel with seeded races, ``{out}`` for an empty directory
    :param files: names of the output files, each with a function that checks an existing one
    :param given: commands to run first, which are not killed
    :param ends: the expected exit status
    """

    name: str
    words: tuple[str, ...]
    files: Mapping[str, Callable[[Path, str], None]] = field(default_factory=dict)
    given: tuple[tuple[str, ...], ...] = ()
    ends: int = 0


def page_is_whole(path: Path, _kernel: str) -> None:
    """Check that a page ends with its closing tag."""
    end = path.read_text()[-40:]
    if not end.rstrip().endswith("</html>"):
        raise LeftError(f"{path.name}: truncated: ends in {end!r} instead of '</html>'")


# Commands that can run with the teaching kernel or a FreeBSD kernel.
COMMANDS = (
    Command("boot", ("boot", "-k", "{kernel}", "--save", "{out}/a.kinst"),
            {"a.kinst": snapshot_is_whole}),
    Command("call", ("call", "-k", "{kernel}", "fibonacci(22)", "--json")),
    Command("record", ("call", "-k", "{kernel}", "fibonacci(23)", "--record", "{out}/a.rec"),
            {"a.rec": recording_is_whole}),
    Command("replay", ("replay", "{out}/given.rec", "--trace-insns", "0%:100%", "--as", "json",
                       "-o", "{out}/a.json"), {"a.json": json_is_whole},
            (("call", "-k", "{kernel}", "fibonacci(14)", "--record", "{out}/given.rec"),)),
    Command("explain", ("explain", "-k", "{kernel}", "strlen:0", "-c", 'strlen("a")', "--html",
                        "{out}/a.html"), {"a.html": page_is_whole}),
    Command("relocate", ("relocate", "-k", "{kernel}", "strlen", "fibonacci", "strtoul",
                         "--states", "30", "--jobs", "2", "--store", "{out}/a.db"),
            {"a.db": store_is_whole}),
    Command("explore", ("explore", "-k", "{races}", "--setup", "counter_reset()",
                        "--run", "counter_bad()", "--run", "counter_bad()", "--jobs", "2",
                        "--limit", "300", "--html", "{out}/a.html"), {"a.html": page_is_whole},
            ends=1),  # exit status if a schedule fails
    Command("sweep", ("relocate", "-k", "{kernel}", "--states", "20", "--jobs", "2", "--store",
                      "{out}/a.db"), {"a.db": store_is_whole}),
    # A random call may execute too many instructions to be compared; those of this seed do not.
    Command("xval", ("xval", "-k", "{kernel}", "--random", "3", "--seed", "3", "--jobs", "2",
                     "--store", "{out}/a.db"), {"a.db": store_is_whole}),
)
# Commands for a FreeBSD kernel whose directory contains kinst.ko.
FREEBSD = (
    Command("boot", ("boot", "-k", "{kernel}", "--save", "{out}/a.kinst"),
            {"a.kinst": snapshot_is_whole}),
    Command("call", ("call", "-k", "{kernel}", "strlen(\"abc\")", "--json")),
    Command("run", ("run", "-k", "{kernel}", "ls / && cat /etc/motd")),
    Command("record", ("record", "-k", "{kernel}", "-o", "{out}/a.rec", "$ ls /"),
            {"a.rec": recording_is_whole}),
    Command("replay", ("replay", "{out}/given.rec", "--trace-insns", "90%:91%", "--as", "json",
                       "-o", "{out}/a.json"), {"a.json": json_is_whole},
            (("record", "-k", "{kernel}", "-o", "{out}/given.rec", "$ cat /etc/motd"),)),
    Command("relocate", ("relocate", "-k", "{kernel}", "malloc", "free", "strlen", "vn_open",
                         "--states", "30", "--jobs", "2", "--store", "{out}/a.db"),
            {"a.db": store_is_whole}),
    Command("trial", ("trial", "-k", "{kernel}", "--random", "30", "--jobs", "2", "--store",
                      "{out}/a.db", "--html", "{out}/a.html"),
            {"a.db": store_is_whole, "a.html": page_is_whole}),
    Command("explore", ("explore", "-k", "{kernel}", "--run", 'strlen("a")', "--run",
                        'strlen("b")', "--jobs", "2", "--limit", "20")),
    # A random call may execute too many instructions to be compared; those of this seed do not.
    Command("xval", ("xval", "-k", "{kernel}", "--random", "3", "--seed", "3", "--jobs", "2",
                     "--store", "{out}/a.db"), {"a.db": store_is_whole}),
)


def processes(mark: str) -> list[tuple[int, str]]:
    """Return (process ID, command line) of each live process whose environment contains a mark."""
    live = []
    wanted = f"{MARK}={mark}".encode()
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            if wanted in (path / "environ").read_bytes().split(b"\0") and (
                    path / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                live.append((int(path.name), line))
        except OSError:  # the process has ended meanwhile
            continue
    return live


class Victim:
    """A command to kill, with its output directory and its normal duration.

    :param seconds: the command's duration; 0 runs the command once to measure it
    """

    def __init__(self, command: Command, kernel: str, folder: Path, seconds: float = 0.0) -> None:
        self.command, self.kernel, self.folder = command, kernel, folder
        for words in command.given:
            self._whole(words, 0)
        begin = time.monotonic()
        if not seconds:
            self.again()
        self.seconds = seconds or time.monotonic() - begin

    def _whole(self, words: tuple[str, ...], ends: int) -> None:
        done = subprocess.run(self._spelled(words), capture_output=True, text=True, timeout=LONGEST,
                              stdin=subprocess.DEVNULL, check=False)
        if done.returncode != ends or "Traceback" in done.stderr:
            raise LeftError(
                f"{self.command.name}: failed with status {done.returncode}: {done.stderr}")

    def _spelled(self, words: tuple[str, ...]) -> list[str]:
        names = {"{kernel}": self.kernel, "{out}": str(self.folder),
                 "{races}": str(Path(self.kernel).with_name("races"))}
        command = [sys.executable, "-c", "import kinst_emu.commands.entry as entry; entry.kinst()"]
        for word in words:
            for name, value in names.items():
                word = word.replace(name, value)
            command.append(word)
        return command

    def kill(self, how: signal.Signals, seconds: float) -> bool:
        """Run the command and send it a signal; return whether the command was still running.

        :raises LeftError: a process, a broken file or a traceback is left
        """
        for name in self.command.files:
            for path in self.folder.glob(f"{name}*"):  # the pattern includes SQLite journals
                path.unlink()
        mark = uuid.uuid4().hex
        with subprocess.Popen(
                self._spelled(self.command.words), env=os.environ | {MARK: mark},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                start_new_session=True, preexec_fn=_hang_up) as process:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                if how is signal.SIGINT:  # like a terminal, signal the whole process group
                    os.killpg(process.pid, how)
                else:
                    process.send_signal(how)
            early = process.poll() is None
            ends = time.monotonic() + PATIENCE
            while (left := processes(mark)) and time.monotonic() < ends:
                time.sleep(0.05)
            for number, _line in left:
                os.kill(number, signal.SIGKILL)
            assert process.stderr is not None
            errors = process.stderr.read().decode(errors="replace")
        where = f"{self.command.name}, {how.name} after {seconds:.2f} s"
        if left:
            raise LeftError(f"{where}: processes are still running after {PATIENCE} s: {left}")
        if "Traceback" in errors:
            raise LeftError(f"{where}: the command printed a traceback: {errors}")
        for name, check in self.command.files.items():
            if (path := self.folder / name).exists():
                try:
                    check(path, self.kernel)
                except (kinst_emu.KinstError, OSError, ValueError, sqlite3.Error, LeftError
                        ) as error:
                    raise LeftError(f"{where}: {error}") from None
        return early

    def again(self) -> None:
        """Run the command to completion, even if a killed run has left files.

        :raises LeftError: the command fails or does not write its files
        """
        self._whole(self.command.words, self.command.ends)
        for name, check in self.command.files.items():
            check(self.folder / name, self.kernel)


def _hang_up() -> None:
    """Restore the default action of SIGHUP, which nohup may have set to ignore."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def moment(generator: random.Random, victim: Victim) -> tuple[signal.Signals, float]:
    """Return a random signal, and the delay in seconds before the signal is sent."""
    return generator.choice(SIGNALS), generator.uniform(FIRST, victim.seconds)
