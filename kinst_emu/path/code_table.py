"""Table of the instructions on a path: those of its functions, with text and source line."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from dtrace.debug.debug_data import Sources
from dtrace.flow.code import KernelCode
from dwarf.debug_file import debug_file
from kinst.code.dataflow import EFFECTS
from kinst.code.operands import OPERANDS
from kinst.code.transfer import Transfer, ending
from kinst.relocation.trap import TRAPS

MOST = 60_000  # maximum number of instructions in the table that were not executed


@dataclass
class CodeTable:
    """Instructions in the order of their addresses.

    :param addresses: their addresses.
    :param texts: in assembly language.
    :param lines: number of the source line in ``places``; 0: none.
    :param branches: index of the instruction to which a conditional branch jumps, by the index of
        the branch; -1 if it is not in the table.
    :param mentions: names of the registers that the operands mention or that it writes.
    :param functions: (name, index of the first instruction, number of instructions).
    :param places: source lines as (file, line); the first one stands for no line.
    """

    addresses: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    branches: dict[int, int] = field(default_factory=dict)
    mentions: list[frozenset[str]] = field(default_factory=list)
    functions: list[tuple[str, int, int]] = field(default_factory=list)
    places: list[tuple[str, int]] = field(default_factory=lambda: [("", 0)])

    @property
    def index(self) -> dict[int, int]:
        """Index of each instruction, by address."""
        return {address: number for number, address in enumerate(self.addresses)}


def code_table(code: KernelCode, executed: Iterable[int]) -> CodeTable:
    """Return the table of the functions to which the executed instructions belong.

    Of functions that are left out because the table is full, it has only the executed instructions.
    """
    image, arch, found = code.image, code.arch, set(executed)
    others = 0
    for symbol in sorted({symbol for pc in found
                          if (symbol := image.symbols.function_at(pc)) is not None},
                         key=lambda symbol: symbol.size):
        if others + symbol.size // 4 < MOST:
            whole = _instructions(code, symbol.address, symbol.size)
            others += len(whole)
            found.update(whole)
    table, trap = CodeTable(), TRAPS[arch.name]
    sources, places = Sources(image), dict[str, int]()
    has_lines = debug_file(image.file) is not None
    targets = dict[int, int]()
    before = ""
    for address in sorted(found):
        content = code.instruction(address)
        name = code.place(address)[0]
        if name != before:
            table.functions.append((name, len(table.addresses), 0))
            before = name
        last = table.functions[-1]
        table.functions[-1] = last[0], last[1], last[2] + 1
        number = len(table.addresses)
        table.addresses.append(address)
        table.texts.append(arch.disassemble(content, address) if content else "")
        table.lines.append(_line(table, places, sources.line(address) if has_lines else "?"))
        table.mentions.append(_mentions(arch.name, content, address))
        if content:
            end = ending(trap, content, address)
            if end.transfer is Transfer.BRANCH and end.target is not None:
                targets[number] = end.target
    index = table.index
    table.branches = {number: index.get(target, -1) for number, target in targets.items()}
    return table


def _instructions(code: KernelCode, address: int, size: int) -> list[int]:
    """Return the addresses of a function's instructions."""
    found, end = [], address + size
    while address < end:
        length = len(code.instruction(address))
        if not length:
            break
        found.append(address)
        address += length
    return found


def _line(table: CodeTable, places: dict[str, int], text: str) -> int:
    if text == "?":
        return 0
    if text not in places:
        path, _colon, line = text.rpartition(":")
        places[text] = len(table.places)
        table.places.append((path, int(line)))
    return places[text]


def _mentions(arch: str, content: bytes, address: int) -> frozenset[str]:
    if not content:
        return frozenset()
    names = set(EFFECTS[arch](content).writes)
    for operand in OPERANDS[arch](content, address).operands:
        names |= {operand.register, operand.base, operand.index}
    return frozenset(names - {""})

