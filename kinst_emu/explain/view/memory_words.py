"""Words of memory that are shown: a stack, a trap frame, what is kept of a thread."""

from dataclasses import dataclass

from kinst_emu.explain.view.scene import Row

UNWRITTEN = "not written yet"


@dataclass(frozen=True)
class StackWord:
    """A word of 64 bits at one moment.

    :param value: None: it was not looked at.
    :param fields: of the trap frame that lie there, in their order; none before the exception, nor
        when the trap frame is left.
    :param changed: stored since the moment before.
    :param written: whether this exception has stored it: else a field holds what something else
        has left there.
    """

    address: int
    value: int | None
    fields: tuple[str, ...]
    changed: bool
    written: bool = True

    @property
    def shown(self) -> int | None:
        """What it holds for this firing; None: nothing yet, or it was not looked at."""
        return None if self.fields and not self.written else self.value

    @property
    def content(self) -> int | str:
        """The same for readers; empty where it was not looked at."""
        if self.shown is not None:
            return self.shown
        return "" if self.value is None else UNWRITTEN


def word_row(word: StackWord, owned: bool = True, sp: int | None = None) -> Row:
    """The row of a word: its address, what it holds, its fields.

    :param owned: whether it is somebody's; else it is below a stack pointer.
    :param sp: the stack pointer, if the word is one of a stack.
    """
    marks = [name for name, is_so in (
        ("unwritten", not word.written and word.fields), ("changed", word.changed and owned),
        ("below", not owned), ("sp", word.address == sp)) if is_so]
    return Row((word.address, word.content, ", ".join(word.fields)), tuple(marks),
               {"address": f"{word.address:x}", "fields": " ".join(word.fields),
                "value": "" if word.shown is None else f"{word.shown:016x}"})
