"""Result of testing one encoding, as it is stored, sent and shown."""

import json
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kinst.verify.laboratory.outcome import Mismatch
from kinst.verify.sweep.store import Kept
from kinst.verify.sweep.sweep import KeptTask
from kinst.verify.sweep.task import Prepared

UNPROVEN = "unproven: "
FAULTS = "which faults in every state"
ONE_WAY = "which goes one way in every state"
NOT_TOLD = "which no state distinguishes from kinst-emu's verdict: "


@dataclass(frozen=True)
class Finding:
    """Result of testing one encoding.

    :param word: ``copy``, ``rewrite``, ``emulate``, ``refuse: ...``, ``not executed: ...`` or
        ``unproven: ...`` (executed, but no state could have revealed a mistake).
    :param state: number of the first random state with a wrong result; None if none is wrong.
    :param verdict: verdict of the relocator, if the result is wrong or ``word`` does not name it.
    :param how: way of execution that was compared with the execution in place.
    :param lines: differences between the two executions.
    :param note: additional remark, or an empty string.
    :param judged: result on the host's CPU, if it was used.
    :param mismatch: both outcomes; None after the finding was read from a store.
    :param source: module source lines that led to the result, as ``function  file:line``.
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
        """Omit trailing default values from pickles, as sweeps send very many findings."""
        values = [getattr(self, field_.name) for field_ in FIELDS]
        while len(values) > 2 and values[-1] == FIELDS[len(values) - 1].default:
            values.pop()
        return Finding, tuple(values)

    @property
    def wrong(self) -> bool:
        """Whether the result is wrong in some state."""
        return self.state is not None

    @property
    def unproven(self) -> bool:
        """Whether the encoding passed, but no state could have revealed a mistake."""
        return self.word.startswith(UNPROVEN)

    def at(self, source: str) -> "Finding":
        """Return a copy that names the source lines that led to the result."""
        return replace(self, source=source) if source else self

    def differences(self) -> list[str]:
        """Return a line for each difference; each line shows the value in place first."""
        return list(self.lines)


FIELDS = fields(Finding)


def unproven(verdict: str, why: str) -> str:
    """Return the result word for an encoding that passed without proof: its verdict and ``why``."""
    return f"{UNPROVEN}{verdict}, {why}"


def finding(word: str, mismatch: Mismatch | None, code: bytes, note: str = "", judged: str = "",
            source: str = "", verdict: str = "") -> Finding:
    """Build a finding from a result word and, if the result is wrong, a mismatch."""
    if mismatch is None:
        return Finding(code, word, verdict="" if verdict == word else verdict, note=note,
                       judged=judged)
    return Finding(code, word, mismatch.state, mismatch.verdict, mismatch.how,
                   tuple(mismatch.differences()), note, judged, source, mismatch)


def to_kept(one: Finding) -> Kept:
    """Convert a finding to its stored form; optional fields become JSON."""
    row: dict[str, Any] = {}
    if one.wrong:
        row |= {"state": one.state, "how": one.how, "lines": one.lines}
    row |= {name: value for name in ("verdict", "note", "judged", "source")
            if (value := getattr(one, name))}
    return Kept(one.code, one.word, json.dumps(row) if row else "")


def from_kept(kept: Kept) -> Finding:
    """Convert the stored form of a finding back to a finding.

    :raises ValueError: if ``to_kept`` cannot have written it.
    """
    row = json.loads(kept.detail) if kept.detail else {}
    if not isinstance(row, dict):
        raise ValueError("the details of the finding are not a JSON object")
    state, lines = row.get("state"), row.get("lines", [])
    words = [row.get(name, "") for name in ("verdict", "how", "note", "judged", "source")]
    if not (state is None or type(state) is int) or not isinstance(lines, list) or not all(
            isinstance(one, str) for one in (*words, *lines)):
        raise ValueError("a field of the finding has the wrong type")
    verdict, how, note, judged, source = words
    # Earlier versions of this program stored "not shown: ..." for an unproven result.
    word = (UNPROVEN + kept.word.removeprefix("not shown: ")
            if kept.word.startswith("not shown: ") else kept.word)
    return Finding(kept.item, word, state, verdict, how, tuple(lines), note, judged, source)


class FindingTask(KeptTask[bytes, Finding, Prepared]):
    """Sweep task whose results are findings about encodings."""

    def named(self, item: bytes) -> bytes:
        """Return the item itself: a store identifies encodings by their bytes."""
        return item

    def kept(self, item: bytes, result: Finding) -> Kept:
        """Return the stored form of a finding."""
        return to_kept(result)

    def known(self, kept: Kept) -> Finding:
        """Return the finding of a stored result."""
        return from_kept(kept)


class UnpreparedTask(FindingTask[None]):
    """Sweep task for findings that needs no preparation in a worker process."""

    @property
    def prepared_for(self) -> None:
        """None, because a worker process keeps no prepared object between parts."""
        return None

    def prepare(self) -> None:
        """Do nothing: no preparation is needed."""
        return None
