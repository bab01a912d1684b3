"""Why an instruction of a recorded run was executed: the branches that led to it.

The branches are those of the activation of its function (from the call to the return) that the
instruction depends on (``control.py``), with the values that they compared.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from dtrace.debug.variable_scopes import VariableScopes
from dtrace.flow.code import KernelCode
from dtrace.flow.control import EXIT, ControlFlow
from dtrace.flow.origin import Link
from dtrace.flow.windows import WINDOW, Window, Windows
from dtrace.stacks.stack import Stacks
from dwarf.locations import Constant, Location, Operation, Register
from dwarf.scopes import Variable
from dwarf.types import Array, Pointer, Structure, Type, size_of, strip
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError, MemoryAccessError
from kinst.code.dataflow import EFFECTS
from kinst.code.operands import OPERANDS, Operand, Operands
from kinst.code.transfer import Transfer, ending
from kinst.relocation.trap import TRAPS

MASK = (1 << 64) - 1
MAX_BACK = 2_000_000  # maximum number of instructions between a branch and what depends on it
MAX_STEPS = 16  # maximum number of copies and loads through which a register is named
# How a function ends, if the next instruction is not one of its own
LEAVES = (Transfer.RETURN, Transfer.JUMP, Transfer.INDIRECT, Transfer.BRANCH)
MAX_STATES = 20_000  # maximum number of states in a search of a function's ways
MAX_MEMBERS = 8  # maximum number of structures around a named member


Named = tuple[str, int]  # a name in the source, or "", and the size in bytes of what it names, or 0
UNNAMED: Named = ("", 0)

# Transfers that enter a function; the last two are tail calls.
CALLS = (Transfer.CALL, Transfer.JUMP, Transfer.INDIRECT)


@dataclass(frozen=True)
class Compared:
    """A value that a branch compared.

    :param text: how the instruction writes it: a register, a constant or memory.
    :param name: the variable, member or call that it is in the source; empty if unknown.
    :param value: the value, unsigned; None if it is unknown.
    :param size: size in bytes; 0 if unknown.
    :param constant: whether it is part of the instruction.
    :param whole: size in bytes of what ``name`` is; larger than ``size`` if only a part of it was
        compared; 0 if unknown.
    """

    text: str
    name: str
    value: int | None
    size: int
    constant: bool = False
    whole: int = 0


@dataclass(frozen=True)
class Condition:
    """A branch that was executed, and the way that it took.

    :param count: number of instructions executed before the branch.
    :param pc: address of the branch.
    :param test: address of the instruction that compared the values; ``pc`` if it is the branch.
    :param test_count: number of instructions executed before that instruction.
    :param taken: whether the branch jumped; None for a jump to a computed address.
    :param compared: the values that it compared, as far as they are known.
    """

    count: int
    pc: int
    test: int
    test_count: int
    taken: bool | None
    compared: tuple[Compared, ...]


@dataclass(frozen=True)
class _Executed:
    """An instruction of an activation.

    :param following: address of the activation's next instruction that was executed.
    """

    count: int
    pc: int
    following: int


class Conditions:
    """Finder of the branches that led to instructions of a recording.

    It leaves the player at an arbitrary position.

    :param scopes: the variables in scope, for names; None: there is no debug data.
    """

    def __init__(self, windows: Windows, code: KernelCode, scopes: VariableScopes | None) -> None:
        self._windows, self._code, self._scopes = windows, code, scopes
        machine = windows.player.machine
        self._machine, self._arch = machine, machine.arch
        self._trap = TRAPS[self._arch.name]
        self._stacks = Stacks(machine)
        self._operands, self._effects = OPERANDS[self._arch.name], EFFECTS[self._arch.name]
        self._flows: dict[int, ControlFlow] = {}
        self._known: dict[tuple[int, bool, int, str, int, bool], bool] = {}
        symbols = machine.image.symbols
        self._clobbered = {self._arch.result}  # registers that every call may change
        panic = symbols.find(machine.guest.boot.panic)
        self._ends: set[int] = set() if panic is None else {panic.address}

    # -- activations ------------------------------------------------------------------------------

    def _flow(self, pc: int) -> ControlFlow | None:
        function = self._machine.image.symbols.function_at(pc)
        if function is None:
            return None
        if function.address not in self._flows:
            try:
                self._flows[function.address] = ControlFlow(self._code, function, self._ends)
            except KinstError:
                return None
        return self._flows[function.address]

    def _frame(self, window: Window, index: int) -> int | None:
        """Return the address of the frame in which a window's instruction executed, or None."""
        step = self._stacks.step(window.pcs[index], False)
        if step is None or step.trap:
            return None
        return window.register(index, step.base) + step.offset & MASK

    def activation(self, count: int) -> Iterator[_Executed]:
        """Yield the instructions of an activation before instruction ``count``, latest first.

        The instruction itself is the first one.
        """
        window = self._windows.before(count + 1)
        index = count - window.begin
        pc = window.pcs[index]
        function = self._machine.image.symbols.function_at(pc)
        frame = self._frame(window, index)
        if function is None or frame is None:
            return
        first = self._windows.player.recording.start.position.instructions
        yield _Executed(count, pc, 0)
        following, limit = pc, max(first, count - MAX_BACK)
        while pc != function.address:
            if index == 0:
                if window.begin <= limit:
                    return
                window = self._windows.before(window.begin)
                index = len(window.pcs)
            index -= 1
            pc = window.pcs[index]
            if not 0 <= pc - function.address < function.size:
                continue
            if self._frame(window, index) != frame:
                pc = 0
                continue
            yield _Executed(window.begin + index, pc, following)
            following = pc

    def call_of(self, count: int) -> int | None:
        """Return the instruction count of the call that began an activation, or None.

        :param count: of an instruction of the activation.
        """
        rows = list(self.activation(count))
        if not rows:
            return None
        row = rows[-1]
        function = self._machine.image.symbols.function_at(row.pc)
        first = self._windows.player.recording.start.position.instructions
        if function is None or row.pc != function.address or row.count <= first:
            return None
        window = self._windows.before(row.count)
        pc = window.pcs[row.count - 1 - window.begin]
        call = ending(self._trap, self._code.instruction(pc), pc)
        return row.count - 1 if call.transfer in CALLS else None

    def bases(self, count: int) -> list[tuple[str, int]]:
        """Return the registers that form the address which an instruction accesses, and values.

        If it accesses no memory, return the registers that it reads.
        """
        window = self._windows.before(count + 1)
        index = count - window.begin
        operands = self._operands(self._code.instruction(window.pcs[index]), window.pcs[index])
        names = [name for one in operands.operands if one.memory
                 for name in (one.base, one.segment, one.index) if name]
        names = names or [one.register for one in operands.operands if one.register]
        return [(name, window.register(index, name)) for name in dict.fromkeys(names)
                if name in self._windows.followed]

    # -- conditions -------------------------------------------------------------------------------

    def of(self, count: int) -> Condition | None:
        """Return the last branch that decided that an instruction was executed, or None.

        None: the function always executes it, or the branch is too far back.
        """
        window = self._windows.before(count + 1)
        flow = self._flow(window.pcs[count - window.begin])
        if flow is None:
            return None
        rows: list[_Executed] = []
        wanted = flow.depends(window.pcs[count - window.begin])
        if not wanted:
            return None
        found = None
        for row in self.activation(count):
            if found is not None and (row.pc not in flow.block_of(found.pc)
                                      or len(rows) > MAX_STEPS):
                break
            rows.append(row)
            if found is None and row.pc in wanted and row.count != count:
                found, rows = row, [row]
        return None if found is None else self._condition(rows)

    def executed_branch(self, count: int, following: int) -> Condition | None:
        """Return the branch that was executed after ``count`` instructions.

        None: that instruction is no branch.

        :param following: address of the instruction that its thread executed next.
        """
        rows: list[_Executed] = []
        for row in self.activation(count):
            rows.append(row if rows else _Executed(row.count, row.pc, following))
            if len(rows) > MAX_STEPS:
                break
        if not rows:
            return None
        pc = rows[0].pc
        transfer = ending(self._trap, self._code.instruction(pc), pc).transfer
        return self._condition(rows) if transfer in (Transfer.BRANCH, Transfer.INDIRECT) else None

    def decided(self, links: list[Link]) -> Iterator[Condition]:
        """Yield the branches that decided a value, the last one first.

        Branches whose other way makes the same value, too, are left out.

        :param links: the search for the value's origin; its last link made the value.
        """
        made = links[-1]
        count = made.count
        assert made.pc is not None
        flow = self._flow(made.pc)
        used = links[-2].pc if len(links) > 1 else None
        goal = used if used is not None and flow is not None and flow.contains(used) else EXIT
        while flow is not None:
            condition = self.of(count)
            if condition is None:
                return
            count = condition.count
            if condition.taken is None or not self._same(
                    flow, condition.pc, condition.taken, made.pc, made.place, goal):
                yield condition

    def _same(self, flow: ControlFlow, branch: int, taken: bool, made: int, register: str,
              goal: int, kept: bool = False) -> bool:
        """Return whether the way that a branch did not take surely makes the same value.

        :param goal: the instruction that uses the value, or EXIT.
        :param kept: whether the value had been made already before the branch.
        """
        key = branch, taken, made, register, goal, kept
        if key not in self._known:
            self._known[key] = self._leads_to_same(flow, *key)
        return self._known[key]

    def _leads_to_same(self, flow: ControlFlow, branch: int, taken: bool, made: int,
                       register: str, goal: int, kept: bool) -> bool:
        end = ending(self._trap, self._code.instruction(branch), branch)
        if end.target is None or not flow.contains(end.target):
            return False
        wanted = self._code.instruction(made)
        # The same instruction makes the same value again only if the value is a constant.
        again = self._operands(wanted, made).loads_constant
        waiting = [(end.after if taken else end.target, wanted if kept else b"")]
        seen = set(waiting)
        while waiting:
            start, value = waiting.pop()
            block = flow.blocks.get(start)
            if block is None:  # the function ends
                if goal != EXIT or value != wanted:
                    return False
                continue
            for address in block.addresses:
                if address == goal:
                    if value != wanted:
                        return False
                    break
                code = self._code.instruction(address)
                if register in self._effects(code).writes or (
                        register in self._clobbered and ending(
                            self._trap, code, address).transfer is Transfer.CALL):
                    value = code if again else b"other"
            else:
                new = {(to, value) for to in block.following} - seen
                seen |= new
                waiting += new
                if len(seen) > MAX_STATES:
                    return False
        return True

    def kept(self, links: list[Link], asked: int) -> Condition | None:
        """Return the last branch that kept a value from being replaced after it was made, or None.

        :param links: the search for the value's origin; its last link made the value.
        :param asked: instruction count at which the value was asked for.
        """
        made = links[-1]
        flow = None if made.pc is None else self._flow(made.pc)
        if flow is None or made.pc is None or made.place not in self._windows.followed:
            return None
        used = links[-2] if len(links) > 1 else None
        inside = used is not None and used.pc is not None and flow.contains(used.pc)
        goal = used.pc if inside and used is not None and used.pc is not None else EXIT
        rows = list(self._onward(
            made.count, used.count if inside and used is not None else asked))
        for number in range(len(rows) - 1, 0, -1):
            branch = rows[number]
            if branch.pc not in flow.branches:
                continue
            code = self._code.instruction(branch.pc)
            taken = branch.following == ending(self._trap, code, branch.pc).target
            if not self._same(flow, branch.pc, taken, made.pc, made.place, goal, kept=True):
                before = rows[max(0, number - MAX_STEPS) : number + 1][::-1]
                if len(before) <= MAX_STEPS:  # the comparison may be before the value was made
                    before += itertools.islice(self.activation(made.count), 1, MAX_STEPS)
                return self._condition(before)
        return None

    def _onward(self, count: int, end: int) -> Iterator[_Executed]:
        """Yield the instructions of an activation from instruction ``count`` on.

        :param end: instruction count at which to stop, unless the function ends before.
        """
        window = self._windows.before(count + 1)
        index = count - window.begin
        function = self._machine.image.symbols.function_at(window.pcs[index])
        frame = self._frame(window, index)
        last = min(count + MAX_BACK, self._windows.player.recording.last.instructions, end + 1)
        if function is None or frame is None:
            return
        before: _Executed | None = None
        for at in range(count, last):
            if at >= window.end:
                window = self._windows.before(min(at + WINDOW, last))
            index = at - window.begin
            pc = window.pcs[index]
            if 0 <= pc - function.address < function.size:
                if self._frame(window, index) != frame:
                    continue
                if at > count and pc == function.address:
                    return  # another activation
                if before is not None:
                    yield _Executed(before.count, before.pc, pc)
                before = _Executed(at, pc, 0)
            elif before is not None and at == before.count + 1 and ending(
                    self._trap, self._code.instruction(before.pc), before.pc).transfer in LEAVES:
                return

    def _condition(self, rows: list[_Executed]) -> Condition:
        """Return the condition of the first row, a branch; the rows after it were before it."""
        branch = rows[0]
        code = self._code.instruction(branch.pc)
        end = ending(self._trap, code, branch.pc)
        taken = None if end.transfer is Transfer.INDIRECT else branch.following == end.target
        operands = self._operands(code, branch.pc)
        test = branch
        if operands.reads_flags and not operands.operands:
            for row in rows[1:]:
                found = self._operands(self._code.instruction(row.pc), row.pc)
                if found.sets_flags:
                    test, operands = row, found
                    break
            else:
                operands = Operands()
        return Condition(branch.count, branch.pc, test.pc, test.count, taken,
                         tuple(self._compared(test, one) for one in operands.operands))

    # -- values -----------------------------------------------------------------------------------

    def _compared(self, row: _Executed, operand: Operand) -> Compared:
        window = self._windows.before(row.count + 1)
        index = row.count - window.begin
        if operand.constant is not None:
            return Compared(f"{operand.constant:#x}", "", operand.constant, operand.size, True)
        if operand.register:
            value = window.register(index, operand.register) >> operand.shift & (
                1 << 8 * operand.size) - 1
            name, whole = self._name(window, index, operand.register)
            return Compared(operand.register, name, value, operand.size, whole=whole)
        name, whole = self._memory_name(window, index, operand)
        return Compared(_memory_text(operand), name, self._loaded(window, index, operand),
                        operand.size, whole=whole)

    def _loaded(self, window: Window, index: int, operand: Operand) -> int | None:
        loads = window.loads.get(index, [])
        if len(loads) != 1:
            return None
        physical, size = loads[0]
        self._windows.seek(window.begin + index)
        try:
            content = self._machine.read_physical(physical, size)
        except MemoryAccessError:
            return None
        return int.from_bytes(content, "little")

    def _name(self, window: Window, index: int, register: str) -> Named:
        """Return the variable, member or call whose value, or bits of it, a register holds."""
        masks = ""
        for _ in range(MAX_STEPS):
            variable = self._variable(window.pcs[index], register)
            if variable is not None:
                return _masked((variable.name, size_of(variable.type)), masks)
            writer = self._writer(window, index, register)
            if isinstance(writer, str):
                return _masked((writer, 0), masks)
            if writer is None:
                return UNNAMED
            code, pc = self._code.instruction(window.pcs[writer]), window.pcs[writer]
            effect, operands = self._effects(code), self._operands(code, pc)
            index = writer
            if register in effect.loads:
                operand = next((one for one in operands.operands if one.memory), None)
                return UNNAMED if operand is None else _masked(
                    self._memory_name(window, writer, operand), masks)
            if operands.ands and len(operands.operands) > 1:
                source, mask = operands.operands[-2:]
                if mask.constant is not None and source.register:
                    masks, register = f" & {mask.constant:#x}{masks}", source.register
                    continue
            sources = effect.copies.get(register, ())
            if len(sources) != 1:
                return UNNAMED
            (register,) = sources
        return UNNAMED

    def _writer(self, window: Window, index: int, register: str) -> int | str | None:
        """Return the index of the instruction of the activation that wrote a register last.

        If a function that it called did, return the call's name.
        """
        function = self._machine.image.symbols.function_at(window.pcs[index])
        frame = self._frame(window, index)
        if function is None:
            return None
        inner: Symbol | None = None
        for at in range(index - 1, -1, -1):
            pc = window.pcs[at]
            inside = (0 <= pc - function.address < function.size
                      and self._frame(window, at) == frame)
            if not inside:
                around = self._machine.image.symbols.function_at(pc)
                inner = around or inner
                continue
            if register in self._effects(self._code.instruction(pc)).writes:
                return at
            if inner is not None:
                call = ending(self._trap, self._code.instruction(pc), pc)
                if call.transfer is Transfer.CALL and register == self._arch.result:
                    return f"{inner.name}()"
                inner = None
        return None

    def _variable(self, pc: int, register: str) -> Variable | None:
        if self._scopes is None or register not in self._arch.dwarf_registers:
            return None
        number = self._arch.dwarf_registers.index(register)
        wanted = Location(Register(number), False)
        return next((variable for scope in self._scopes.at(pc) for variable in scope.variables
                     if variable.place == wanted), None)

    def _memory_name(self, window: Window, index: int, operand: Operand) -> Named:
        """Return the variable or member in memory that an operand denotes, if it is known."""
        found = self._declared_name(window, index, operand)
        return found if found[0] else self._object_name(window, index, operand)

    def _object_name(self, window: Window, index: int, operand: Operand) -> Named:
        """Return the kernel's variable at the address of an operand, if it is known."""
        address = operand.offset
        for name, scale in ((operand.base, 1), (operand.segment, 1),
                            (operand.index, operand.scale)):
            if name and name not in self._windows.followed:
                return UNNAMED
            address += window.register(index, name) * scale if name else 0
        symbol = self._machine.image.symbols.object_at(address & MASK)
        if symbol is None:
            return UNNAMED
        offset = (address & MASK) - symbol.address
        return symbol.name + (f"+{offset:#x}" if offset else ""), 0 if offset else symbol.size

    def _declared_name(self, window: Window, index: int, operand: Operand) -> Named:
        pc = window.pcs[index]
        if operand.index or operand.segment:
            return UNNAMED
        if operand.base not in self._arch.dwarf_registers:
            return UNNAMED
        if self._scopes is not None:
            number = self._arch.dwarf_registers.index(operand.base)
            term = Operation("+", Register(number), Constant(operand.offset & MASK))
            for scope in self._scopes.at(pc):
                for variable in scope.variables:
                    if variable.place == Location(term, True):
                        return variable.name, size_of(variable.type)
        found = self._pointer(window, index, operand.base)
        if found is None:
            return UNNAMED
        name, kind = found
        member = _member(kind, operand.offset)
        if not member:
            return UNNAMED
        return f"{name}->{member}", size_of(_member_type(kind, operand.offset))

    def _pointer(self, window: Window, index: int, register: str) -> tuple[str, Type] | None:
        """Return the name and target type of the pointer that a register holds, or None."""
        for _ in range(MAX_STEPS):
            variable = self._variable(window.pcs[index], register)
            if variable is not None:
                kind = strip(variable.type)
                return (variable.name, strip(kind.target)) if isinstance(kind, Pointer) else None
            writer = self._writer(window, index, register)
            if writer is None or isinstance(writer, str):
                return None
            code, pc = self._code.instruction(window.pcs[writer]), window.pcs[writer]
            effect = self._effects(code)
            index = writer
            if register in effect.loads:
                operand = next((one for one in self._operands(code, pc).operands if one.memory),
                               None)
                if operand is None or not operand.base or operand.index or (
                        operand.segment):
                    return None
                outer = self._pointer(window, writer, operand.base)
                if outer is None:
                    return None
                member = _member(outer[1], operand.offset)
                kind = strip(_member_type(outer[1], operand.offset))
                return (f"{outer[0]}->{member}", strip(kind.target)) if member and isinstance(
                    kind, Pointer) else None
            sources = effect.copies.get(register, ())
            if len(sources) != 1:
                return None
            (register,) = sources
        return None


def _masked(name: Named, masks: str) -> Named:
    """Return the name of the bits of a value that are left after AND with constants."""
    return (name[0] + masks, 0) if masks and name[0] else name


def _memory_text(operand: Operand) -> str:
    parts = [part for part in (
        operand.segment, operand.base,
        f"{operand.index}*{operand.scale}" if operand.index else "") if part]
    text = " + ".join(parts)
    if operand.offset or not parts:
        sign = "-" if operand.offset < 0 else "+"
        text += f" {sign} {abs(operand.offset):#x}" if parts else f"{operand.offset:#x}"
    return f"[{text}]"


def _member(kind: Type, offset: int) -> str:
    """Return the path of the member of a structure at an offset in bytes, or an empty string."""
    path = ""
    for _ in range(MAX_MEMBERS):
        found = _inside(kind, offset)
        if found is None:
            return path
        name, kind, offset = found
        if name:
            path += name if name[0] == "[" or not path else f".{name}"
    return path


def _member_type(kind: Type, offset: int) -> Type:
    for _ in range(MAX_MEMBERS):
        found = _inside(kind, offset)
        if found is None:
            return kind
        _name, kind, offset = found
    return kind


def _inside(kind: Type, offset: int) -> tuple[str, Type, int] | None:
    """Return the name and type of the part of a type at an offset, and the offset within it.

    Members of unions and bit-fields are not told apart.
    """
    kind = strip(kind)
    if isinstance(kind, Array):
        size = size_of(kind.element)
        if not size or not 0 <= offset < size * (kind.count or 0):
            return None
        return f"[{offset // size}]", kind.element, offset % size
    if not isinstance(kind, Structure) or kind.kind == "union":
        return None
    for member in kind.members:
        if member.width is not None:
            continue
        begin = member.offset // 8
        try:
            size = size_of(member.type)
        except KinstError:
            continue
        if begin <= offset < begin + size:
            return member.name, member.type, offset - begin
    return None
