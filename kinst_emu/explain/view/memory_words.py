"""Rows of a scene for memory words: a stack, a trap frame or a thread's saved registers."""

from dataclasses import dataclass

from kinst_emu.explain.view.scene import Row

UNWRITTEN = "not written yet"


@dataclass(frozen=True)
class StackWord:
    """A 64-bit word of memory at one moment.

    :param value: the word, or None if it was not recorded.
    :param fields: trap frame fields in the word, in order; empty before the exception and after
        the return from it.
    :param changed: whether it was stored since the previous moment.
    :param written: whether this exception has stored the word; if not, its fields are stale.
    """

    address: int
    value: int | None
    fields: tuple[str, ...]
    changed: bool
    written: bool = True

    @property
    def shown(self) -> int | None:
        """Value of the word, or None if its fields are stale or its value was not recorded."""
        return None if self.fields and not self.written else self.value

    @property
    def content(self) -> int | str:
        """Value to print: the word, ``UNWRITTEN`` if it is stale, or "" if it was not recorded."""
        if self.shown is not None:
            return self.shown
        return "" if self.value is None else UNWRITTEN


def word_row(word: StackWord, owned: bool = True, sp: int | None = None) -> Row:
    """Return a row with the address, the content and the fields of a word.

    :param owned: whether the word is in use; if not, it is below the stack pointer.
    :param sp: the stack pointer, if the word is on a stack.
    """
    marks = [name for name, is_so in (
        ("unwritten", not word.written and word.fields), ("changed", word.changed and owned),
        ("below", not owned), ("sp", word.address == sp)) if is_so]
    return Row((word.address, word.content, ", ".join(word.fields)), tuple(marks),
               {"address": f"{word.address:x}", "fields": " ".join(word.fields),
                "value": "" if word.shown is None else f"{word.shown:016x}"})
