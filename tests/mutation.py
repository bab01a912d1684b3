"""Deliberately wrong relocations, which the laboratory must detect."""

from collections import defaultdict
from copy import copy
from functools import cache
from itertools import product

from emu.arch.architectures import ARCHITECTURES
from kinst.code.survey import survey
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Copy, Refuse, Rewrite, summary
from kinst.verify.laboratory.architecture import LABORATORIES
from kinst.verify.laboratory.laboratory import Laboratory
from kinst.verify.laboratory.memory_map import CODE

SEEDS = range(1, 13)  # the contents of a laboratory's memory depend on its seed


class Mutated:
    """Proxy for an architecture's instruction table that changes the table's verdicts."""

    def __init__(self, instructions, change):
        self._instructions, self._change = instructions, change

    def __getattr__(self, name):
        return getattr(self._instructions, name)

    def classify(self, code, address):
        length, verdict = self._instructions.classify(code, address)
        return length, self._change(verdict)


def mutated(trap, change):
    """Return a copy of a trap whose instruction table passes its verdicts through ``change``."""
    changed = copy(trap)
    changed.instructions = Mutated(trap.instructions, change)
    return changed


class OffByOne:
    """An emulation that continues one byte after the correct address."""

    def __init__(self, verdict):
        self._verdict = verdict

    def __getattr__(self, name):
        return getattr(self._verdict, name)

    def next_pc(self, state):
        return self._verdict.next_pc(state) + 1


class Disturbed(OffByOne):
    """An emulation that flips one bit of every value that it writes to a register or memory."""

    def next_pc(self, state):
        return self._verdict.next_pc(Counting(state))


class Counting:
    """Proxy for an emulation's state that flips bit 0 of all written values."""

    def __init__(self, state):
        self._state = state

    def __getattr__(self, name):
        return getattr(self._state, name)

    def set(self, register, value):
        self._state.set(register, value ^ 1)

    def set_vector(self, number, value):
        self._state.set_vector(number, value ^ 1)

    def store(self, address, size, value):
        self._state.store(address, size, value ^ 1)


def is_rewrite(verdict):
    """Return whether a verdict says to rewrite the instruction."""
    return isinstance(verdict, Rewrite)


def is_emulation(verdict):
    """Return whether a verdict says to emulate the instruction."""
    return not isinstance(verdict, Copy | Rewrite | Refuse)


def writes(verdict):
    """Return whether a verdict is an emulation that changes more than the pc."""
    class Seen(Exception):
        pass

    class State:
        def get(self, register):
            return CODE

        def load(self, address, size):
            return CODE

        def set(self, *_arguments):
            raise Seen

        set_vector = store = set

    if not is_emulation(verdict):
        return False
    try:
        verdict.next_pc(State())
    except Seen:
        return True
    return False


MUTATIONS = {
    "rewrites copied": (is_rewrite, lambda verdict: Copy()),
    "the next pc off by one": (is_emulation, OffByOne),
    "what is written off by one": (writes, Disturbed),
}


def kinds(arch, codes, wanted):
    """Return the encodings whose verdict satisfies ``wanted``, grouped by (mnemonic, verdict)."""
    encodings = defaultdict(list)
    for code in codes:
        length, verdict = TRAPS[arch].instructions.classify(code, CODE)
        if length == len(code) and wanted(verdict):
            text = ARCHITECTURES[arch].disassemble(code, CODE)
            encodings[text.split()[0], summary(verdict)].append(code)
    return encodings


def missed(arch, codes, mutation, states, most):
    """Return the kinds of instructions with undetected mutations, and the total number of kinds.

    At most ``most`` encodings of each kind are tested, with several contents of memory, since an
    instruction may use one bit only, which may be the same elsewhere. A kind is not counted as
    undetected if none of its encodings is executed.
    """
    wanted, change = MUTATIONS[mutation]
    trap = mutated(TRAPS[arch], lambda v: change(v) if wanted(v) else v)
    laboratory = cache(lambda seed: Laboratory(LABORATORIES[arch](), trap, seed))
    lost, every = {}, kinds(arch, codes, wanted)
    for kind, encodings in every.items():
        words = set()
        for seed, code in product(SEEDS, encodings[:most]):
            word, mismatch = laboratory(seed).test(code, states)
            words.add(word)
            if mismatch is not None:
                break
        else:
            if not all(word.startswith("not executed") for word in words):
                lost[kind] = encodings[0].hex()
    return lost, len(every)


def encodings(image, arch):
    """Return the distinct encodings of the instructions in a kernel."""
    functions = list(image.symbols.functions())
    return list(survey(ARCHITECTURES[arch], TRAPS[arch], image, functions).places)
