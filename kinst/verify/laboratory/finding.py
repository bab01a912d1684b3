"""What became of one encoding, as it is kept, sent and shown."""

import json
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kinst.verify.laboratory.outcome import Mismatch
from kinst.verify.sweep.store import Kept
from kinst.verify.sweep.sweep import KeptTask
from kinst.verify.sweep.task import Prepared

NOT_SHOWN = "not shown: "
FAULTS = "which faults in every state"
ONE_WAY = "which goes one way in every state"
NOT_TOLD = "and no state tells it from ours: "


@dataclass(frozen=True)
class Finding:
    """:param word: ``copy``, ``rewrite``, ``emulate``, ``refuse: ...``, ``not executed: ...``,
        ``not shown: ...``: executed, but no state could have told a mistake.
    :param state: the number of the first random state in which it goes wrong; None: in none.
    :param verdict: of the relocator, where it goes wrong or the word does not say it; ``how`` what
        was compared with the execution in place.
    :param lines: what differs there.
    :param note: what else is to be said; empty: nothing.
    :param judged: what became of it on the host's own CPU, when that was asked for.
    :param mismatch: both outcomes, as long as it is not kept in a file.
    :param source: the line of a module's source that decided, as ``function  file:line``.
    """

    code: bytes
    word: str
    state: int | None = None
    verdict: str = ""
    how: str = ""
    lines: tuple[str, ...] = ()
    note: str = ""
    judged: str = ""
    source: str = ""
    mismatch: Mismatch | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Most have a code and a word alone; they are sent by the hundred thousand."""
        values = [getattr(self, one.name) for one in FIELDS]
        while len(values) > 2 and values[-1] == FIELDS[len(values) - 1].default:
            values.pop()
        return Finding, tuple(values)

    @property
    def wrong(self) -> bool:
        return self.state is not None

    @property
    def unshown(self) -> bool:
        return self.word.startswith(NOT_SHOWN)

    def at(self, source: str) -> "Finding":
        """The same, with the lines that decided."""
        return replace(self, source=source) if source else self

    def differences(self) -> list[str]:
        """One line for everything that differs, in place first."""
        return list(self.lines)


FIELDS = fields(Finding)


def not_shown(verdict: str, why: str) -> str:
    """The word for what passes without having been shown."""
    return f"{NOT_SHOWN}{verdict}, {why}"


def finding(word: str, mismatch: Mismatch | None, code: bytes, note: str = "", judged: str = "",
            source: str = "", verdict: str = "") -> Finding:
    """Of what an experiment gave."""
    if mismatch is None:
        return Finding(code, word, verdict="" if verdict == word else verdict, note=note,
                       judged=judged)
    return Finding(code, word, mismatch.state, mismatch.verdict, mismatch.how,
                   tuple(mismatch.differences()), note, judged, source, mismatch)


def to_kept(one: Finding) -> Kept:
    """As a store keeps it: the rest is JSON, empty where there is nothing more."""
    row: dict[str, Any] = {}
    if one.wrong:
        row |= {"state": one.state, "how": one.how, "lines": one.lines}
    row |= {name: value for name in ("verdict", "note", "judged", "source")
            if (value := getattr(one, name))}
    return Kept(one.code, one.word, json.dumps(row) if row else "")


def from_kept(kept: Kept) -> Finding:
    """The finding that ``to_kept`` has written.

    :raises ValueError: for what ``to_kept`` has not written.
    """
    row = json.loads(kept.detail) if kept.detail else {}
    if not isinstance(row, dict):
        raise ValueError("not an object")
    state, lines = row.get("state"), row.get("lines", [])
    words = [row.get(name, "") for name in ("verdict", "how", "note", "judged", "source")]
    if not (state is None or type(state) is int) or not isinstance(lines, list) or not all(
            isinstance(one, str) for one in (*words, *lines)):
        raise ValueError("a finding of another shape")
    verdict, how, note, judged, source = words
    return Finding(kept.item, kept.word, state, verdict, how, tuple(lines), note, judged, source)


class FindingTask(KeptTask[bytes, Finding, Prepared]):
    """A task that judges encodings."""

    def named(self, item: bytes) -> bytes:
        return item

    def kept(self, item: bytes, result: Finding) -> Kept:
        return to_kept(result)

    def known(self, kept: Kept) -> Finding:
        return from_kept(kept)


class UnpreparedTask(FindingTask[None]):
    """One for which a process has nothing to prepare."""

    @property
    def prepared_for(self) -> None:
        return None

    def prepare(self) -> None:
        return None
