"""Survey of all instructions of an image: counts by verdict and the distinct encodings."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from emu.arch.arch import Arch
from emu.elf.image import Image
from emu.elf.program import ProgramFile
from emu.elf.symbols import Symbol
from emu.guest.guest import Guest
from emu.guests.registry import FREEBSD, guest_of
from kinst.code.listing import DATA, EXCLUSIVE, check_size, image_code
from kinst.code.program_code import program_code
from kinst.code.reader import new_reader
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import Op

WORDS = {Op.COPY: "copy", Op.REWRITE: "rewrite"}
EXCLUDED = "refuse: the function is excluded"
NO_INSTRUCTION = "refuse: is not an instruction"


@dataclass
class Survey:
    """Result of a survey of instructions.

    :param places: distinct encoding -> the first place where it occurs.
    :param verdicts: number of instructions by verdict; bytes that are not instructions count once
        for each function, data once for each range.
    """

    places: dict[bytes, str] = field(default_factory=dict)
    verdicts: Counter[str] = field(default_factory=Counter)

    @property
    def probeable(self) -> tuple[int, int]:
        """Numbers of probeable and of all instructions, not counting excluded functions."""
        relevant = {w: n for w, n in self.verdicts.items() if w != EXCLUDED}
        good = sum(n for w, n in relevant.items() if not w.startswith("refuse"))
        return good, sum(relevant.values())


def survey(arch: Arch, trap: GuestTrap, image: Image, functions: Sequence[Symbol]) -> Survey:
    """Survey the instructions of a kernel's functions; functions at the same address count once."""
    guest = guest_of(image, arch.name)
    return _survey(arch, trap, guest, functions, lambda function: image_code(image, function),
                   lambda function: bool(guest.traps.exclusions.reason(function.name)))


def survey_program(arch: Arch, trap: GuestTrap, file: ProgramFile) -> Survey:
    """Survey the instructions of a program or shared object.

    :raises ImageError: when a function's code is not in the file.
    """
    return _survey(arch, trap, FREEBSD[arch.name], program_code(file), file.code,
                   lambda function: False)


def _survey(arch: Arch, trap: GuestTrap, guest: Guest, functions: Sequence[Symbol],
            code_of: Callable[[Symbol], bytes], excluded: Callable[[Symbol], bool]) -> Survey:
    reader, templates = new_reader(arch, trap, guest.traps.trap_frame)
    result = Survey()
    encodings: dict[bytes, tuple[int, int]] = {}
    seen: set[int] = set()
    counts: list[int] = []
    left_out: list[int] = []
    exclusive = bad = data = 0
    # If several functions have the same address, only the largest function counts.
    functions = sorted(functions, key=lambda f: (f.address, -f.size))
    for index, function in enumerate(functions):
        if function.address in seen:
            continue
        seen.add(function.address)
        check_size(function)
        code = code_of(function)
        skipped = excluded(function)
        in_exclusive, invalid, data_ranges = reader.tally(
            function.address, code, 0, len(code), encodings, index, left_out if skipped else counts)
        if skipped:
            result.verdicts[EXCLUDED] += in_exclusive
        else:
            exclusive, bad, data = exclusive + in_exclusive, bad + bool(invalid), data + data_ranges
    result.places = {
        code: f"{functions[index].name}+{at}" for code, (index, at) in encodings.items()
    }
    for template, number in templates.known.items():
        if number < len(counts) and counts[number]:
            op = template.lowered.op
            word = f"refuse: {template.reason}" if op is Op.REFUSE else WORDS.get(op, "emulate")
            result.verdicts[word] += counts[number]
    result.verdicts[EXCLUDED] += sum(left_out)
    result.verdicts[f"refuse: {EXCLUSIVE}"] += exclusive
    result.verdicts[NO_INSTRUCTION] += bad
    result.verdicts[f"refuse: {DATA}"] += data
    result.verdicts = +result.verdicts
    return result
