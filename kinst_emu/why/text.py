"""Answers as text and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict

from dtrace.reasons.conditions import Compared
from kinst_emu.why.explainer import Answer, Place, Reason, number

HOW = {
    "computed here": "made",
    "set by an exception": "set by an exception, or by the kernel's return from it",
    "external input": "given from outside (a recorded input, or a device)",
    "present when the recording begins": "there when the recording begins",
    "combined from several stores; this is the last": "stored in parts, the last one",
    "not followed further": "not followed further back than",
}


def lines(answer: Answer) -> Iterator[str]:
    """Yield the lines of an answer."""
    yield answer.question
    if answer.how:
        yield f"  {HOW.get(answer.how, answer.how)}" + (" at" if answer.made else "")
    if answer.made is not None:
        yield from _place(answer.made)
    if answer.reasons:
        yield "  because"
        for reason in answer.reasons:
            yield from _reason(reason)
    elif answer.made is not None:
        yield "  no branch was found that decides it"
    if answer.through:
        yield "  passed on by" if answer.how else "  called from"
        for place in answer.through:
            yield from _place(place)
    if answer.earlier is not None:
        yield from lines(answer.earlier)


def _place(place: Place, more: str = "") -> Iterator[str]:
    line = place.line or (f"after {place.after}" if place.after else "?")
    yield (f"    {line:<32} {place.function:<28} {more or place.instruction}"
           f"  [{place.count}]")
    if place.source:
        yield f"        {place.source}"
    for function, line in place.inlined:
        yield f"    {line or '?':<32} {function:<28} inlines it"


def _reason(reason: Reason) -> Iterator[str]:
    said = ", ".join(compared_text(one) for one in once(reason.compared))
    yield from _place(reason.test, f"{reason.test.instruction}{taken_text(reason)}")
    if said:
        yield f"        {said}"


def taken_text(reason: Reason) -> str:
    """Return what a branch did, after its mnemonic if another instruction compared the values."""
    taken = {None: "went on", True: "jumped", False: "did not jump"}[reason.taken]
    if reason.test.pc != reason.branch.pc:
        return f"; {reason.branch.instruction.partition(' ')[0]} {taken}"
    return f" {taken}"


def once(compared: tuple[Compared, ...]) -> Iterator[Compared]:
    """Yield the operands without constants; a register that is compared with itself only once."""
    seen = set[str]()
    for one in compared:
        if one.text not in seen and not one.constant:
            seen.add(one.text)
            yield one


def compared_text(one: Compared) -> str:
    """Return a value that a branch compared as text."""
    value = "unknown" if one.value is None else number(one.value)
    if one.name:
        part = (f" ({one.size} of its {one.whole} bytes)" if 0 < one.size < one.whole else "")
        return f"{one.name} is {value}{part}"
    return f"{one.text} is {value}"


def to_json(answer: Answer) -> dict[str, object]:
    """Return an answer as JSON values."""
    return asdict(answer)
