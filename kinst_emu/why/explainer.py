"""Reasons in a recorded run: where a value was made, and which branches led there."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from dtrace.calls.places import Places
from dtrace.debug.debug_data import Sources
from dtrace.debug.debug_index import debug_index
from dtrace.debug.source_text import SourceText
from dtrace.flow.code import KernelCode
from dtrace.flow.origin import How, Link, Origin
from dtrace.reasons.conditions import Compared, Condition, Conditions
from dtrace.stacks.locals import Locals
from dwarf.debug_file import debug_file
from emu.host.progress import PROGRESS
from emu.replay.player import Player
from emu.replay.writes import physical_of

MAX_CONDITIONS = 4  # maximum number of branches in an answer
MAX_EARLIER = 4  # maximum number of values in an answer that were found equal to the first one
MAX_CALLERS = 4  # maximum number of callers in which a branch is looked for
VALUE = 8  # maximum size in bytes of a value in memory whose origin is searched for
BIG = 10  # numbers from here on are shown in hexadecimal
ENDS = (How.MADE, How.EXCEPTION, How.OUTSIDE, How.START, How.PART, How.UNKNOWN)


@dataclass(frozen=True)
class Place:
    """An executed instruction.

    :param count: number of instructions executed before it: its position in the recording.
    :param function: function in the source, which may be inlined.
    :param inlined: for an inlined function, the function and ``file:line`` of its call, and so on
        outward.
    :param where: ``function+offset`` of the kernel's symbols.
    :param line: ``file:line``; empty if the compiler attributes the instruction to no line.
    :param after: ``file:line`` of the code before the instruction, if ``line`` is empty.
    :param source: text of the line; empty if unknown.
    """

    count: int
    pc: int
    function: str
    where: str
    line: str
    source: str
    instruction: str
    inlined: tuple[tuple[str, str], ...] = ()
    after: str = ""


@dataclass(frozen=True)
class Reason:
    """A branch that led to an instruction.

    :param test: the instruction that compared the values.
    :param branch: the branch.
    :param taken: whether the branch jumped; None for a jump to a computed address.
    """

    test: Place
    branch: Place
    taken: bool | None
    compared: tuple[Compared, ...]


@dataclass(frozen=True)
class Answer:
    """Origin of a value, or of the execution of an instruction.

    :param question: what was asked, with the value.
    :param how: how the value came about (``How``); empty for an instruction.
    :param made: the instruction that made the value, or the instruction in question.
    :param reasons: the branches that led there, the last one first.
    :param through: the instructions that passed the value on, or the calls that led to the
        instruction; the last one first.
    :param earlier: where a branch compared something with the value and found it equal: the
        answer for what it compared.  The compiler may have used one for the other.
    """

    question: str
    how: str
    made: Place | None
    reasons: tuple[Reason, ...]
    through: tuple[Place, ...]
    earlier: "Answer | None" = None


class Explainer:
    """Finder of reasons in one recording.  It leaves the player at an arbitrary position.

    :param text: the source files, if the user has any.
    """

    def __init__(self, player: Player, text: SourceText | None = None) -> None:
        self.player, image = player, player.machine.image
        self._code, self._sources, self._text = KernelCode(image), Sources(image), text
        self._index = debug_index(image) if debug_file(image.file) is not None else None
        self.origin = Origin(player, self._code)
        self.locals = None if self._index is None else Locals(player.machine)
        self.conditions = Conditions(self.origin.windows, self._code,
                                     None if self.locals is None else self.locals.scopes)

    def place(self, count: int, pc: int) -> Place:
        """Return the description of an executed instruction of the kernel."""
        image = self.player.machine.image
        line = self._sources.line(pc)
        where = image.symbols.where(pc)
        function, inlined = where.partition("+")[0], list[tuple[str, str]]()
        if self._index is not None and (stack := self._index.stack(pc)):
            function = stack[0].name
            inlined = [(around.name, self._sources.call(self._index, copy)
                        if copy.call_line else "") for copy, around in pairwise(stack)]
        code = self._code.instruction(pc)
        line = "" if line == "?" else line
        return Place(count, pc, function, where, line, self.source(line),
                     self._code.arch.disassemble(code, pc) if code else "", tuple(inlined),
                     "" if line else self._before(pc))

    def _before(self, pc: int) -> str:
        """Return the line of the code before an instruction in its function, or an empty string."""
        function = self.player.machine.image.symbols.function_at(pc)
        return "" if function is None else self._sources.line_before(function.address, pc)

    def source(self, line: str) -> str:
        """Return the text of a source line, or an empty string."""
        return "" if self._text is None else self._text.line(line)

    def at(self, count: int) -> Place:
        """Return the description of the instruction executed after ``count`` instructions."""
        window = self.origin.windows.before(count + 1)
        return self.place(count, window.pcs[count - window.begin])

    def value(self, question: str, links: Iterator[Link], asked: int, depth: int = 0) -> Answer:
        """Return where a value was made, given the search for its origin.

        :param asked: instruction count at which the value was asked for.
        :param depth: number of answers of which this one is a part.
        """
        with PROGRESS.working("looking for the origin of the value"):
            found = list(links)
        last = found[-1]
        if last.pc is None or last.code:
            return Answer(question, _end(last), None, (), self._through(found))
        with PROGRESS.working("looking for the branches that led there"):
            reasons = self._reasons(found, asked)
            made = self.place(last.count, last.pc)
        return Answer(question, _end(last), made, reasons, self._through(found[:-1]),
                      self._earlier(last, reasons, depth))

    def _earlier(self, made: Link, reasons: tuple[Reason, ...], depth: int) -> Answer | None:
        """Return the origin of a register that was found equal to the value, or None."""
        if depth == MAX_EARLIER or made.place not in self.origin.windows.followed:
            return None
        window = self.origin.windows.before(made.count + 1)
        index = made.count - window.begin
        value = window.changes.get(index, {}).get(
            made.place, window.register(index, made.place))
        for reason in reasons:
            for one in reason.compared:
                if one.constant or one.value != value or not one.value or one.text not in (
                        self.origin.windows.followed) or len(reason.compared) != 2:
                    continue
                others = [two for two in reason.compared if two is not one]
                if others[0].value == value and others[0].constant:
                    place = reason.test
                    return self.value(
                        f"{one.name or one.text} was {value:#x} already at "
                        f"{place.line or place.where} [{place.count}]",
                        self.origin.of(one.text, place.count), place.count, depth + 1)
        return None

    def value_of(self, where: str, given: bool = True, name: str = "", shown: str = ""
                 ) -> Answer:
        """Return where the value of a register or memory location was made.

        The player is at the position in question.

        :param where: a register, or a C expression that denotes a place in memory.
        :param given: whether the inputs recorded at that position have been applied.
        :param name: the variable that the register holds, if that was asked for.
        :param shown: its value as text; by default a number.
        """
        machine, count = self.player.machine, self.player.position.instructions
        where = {"sp": machine.arch.sp}.get(where, where)
        if self.origin.is_register(where) or where in machine.arch.registers:
            self.origin.check(where)
            value = machine.read_register(where)
            links = self.origin.of(where, count, given)
            asked = f"{name} (in {where})" if name else where
            return self.value(f"{asked} is {shown or number(value)} at instruction {count}", links,
                              count)
        place = Places(machine).find(where)
        return self.memory_of(where, place.address, place.size)

    def memory_of(self, name: str, address: int, size: int, shown: str = "") -> Answer:
        """Return where a value in memory was made; see ``value_of``.

        Up to eight bytes are traced.

        :param shown: the value as text; by default a number.
        """
        player, count = self.player, self.player.position.instructions
        physical, size = physical_of(player, address), min(size, VALUE)
        value = int.from_bytes(player.machine.read_physical(physical, size), "little")
        return self.value(f"{name} is {shown or number(value)} at instruction {count}",
                          self.origin.of_memory(physical, size, count), count)

    def executed(self, question: str, count: int) -> Answer:
        """Return why an instruction was executed."""
        with PROGRESS.working("looking for the branches that led there"):
            reasons, calls = list[Reason](), list[Place]()
            at: int | None = count
            for _ in range(MAX_CALLERS):
                if at is None:
                    break
                condition = self.conditions.of(at)
                while condition is not None and len(reasons) < MAX_CONDITIONS:
                    reasons.append(self.reason(condition))
                    condition = self.conditions.of(condition.count)
                if reasons:
                    break
                at = self.conditions.call_of(at)
                if at is not None:
                    calls.append(self.at(at))
        return Answer(question, "", self.at(count), tuple(reasons), tuple(calls))

    def _reasons(self, links: list[Link], asked: int) -> tuple[Reason, ...]:
        made = links[-1]
        found = dict[int, Condition]()
        kept = self.conditions.kept(links, asked)
        if kept is not None:
            found[kept.count] = kept
        for condition in self.conditions.decided(links):
            if len(found) == MAX_CONDITIONS:
                break
            found[condition.count] = condition
        at = self.conditions.call_of(made.count) if not found else None
        for _ in range(MAX_CALLERS):
            if at is None:
                break
            called = self.conditions.of(at)
            if called is not None:
                found[called.count] = called
                break
            at = self.conditions.call_of(at)
        return tuple(self.reason(found[count]) for count in sorted(found, reverse=True))

    def reason(self, condition: Condition) -> Reason:
        """Return the description of a branch."""
        return Reason(self.place(condition.test_count, condition.test),
                      self.place(condition.count, condition.pc), condition.taken,
                      condition.compared)

    def _through(self, links: list[Link]) -> tuple[Place, ...]:
        """Return the last instruction of each function that passed the value on.

        Functions that only saved and restored the register are left out.
        """
        places = list[Place]()
        for link in without_saves(links):
            if link.pc is None or link.code:
                continue
            place = self.place(link.count, link.pc)
            if not places or places[-1].function != place.function:
                places.append(place)
        return tuple(places)


def without_saves(links: list[Link]) -> list[Link]:
    """Return the links without pairs that save a register to memory and restore it."""
    kept, at = list[Link](), 0
    while at < len(links):
        link = links[at]
        following = links[at + 1] if at + 1 < len(links) else None
        if (link.how is How.LOADED and following is not None and following.how is How.STORED
                and following.source == link.place):
            at += 2
            continue
        kept.append(link)
        at += 1
    return kept


def number(value: int) -> str:
    """Return a number as text."""
    return f"{value:#x}" if value >= BIG else str(value)


def _end(link: Link) -> str:
    return link.how.value if link.how in ENDS else How.UNKNOWN.value
