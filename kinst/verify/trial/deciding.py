"""Search for the lines of a module's source that decided how an instruction is treated.

The module is single-stepped twice: for the instruction in question and for one that needs no
special treatment.  Of the lines that only the first run reaches, the last one of each function is
named as the deciding line.  Members of the probe that differ between the two runs are named, too,
with the lines that wrote them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from emu.elf.kernel_module import Module
from emu.machine.machine import Until
from kinst.verify.trial.provider_module import MadeProbe
from kinst.verify.trial.sample import Sample
from kinst.verify.trial.trial import NAME, Trial

FUNCTIONS = 4  # maximum number of functions listed
WRITERS = 3  # maximum number of source lines listed as writers of a structure member
STEPS = 20_000  # maximum number of instructions stepped through
SHOWN = 16  # maximum number of bytes shown of a structure member
AWAY = 5_000_000  # maximum number of instructions that a called kernel function may execute
Describe = Callable[[int], str]  # address -> "function  file:line", or "" if unknown


@dataclass
class _Steps:
    """Trace of one pass through the module.

    :param lines: source lines of the module in the order in which they are reached.
    :param writers: for each member of the probe, the lines that changed it.
    :param probe: bytes of the probe's structure.
    """

    lines: list[str] = field(default_factory=list)
    writers: dict[str, list[str]] = field(default_factory=dict)
    probe: bytes = b""


def deciding(trial: Trial, code: bytes, plain: bytes, state: int, describe: Describe) -> str:
    """Return text that names the source lines that created the probe and handled its firing.

    :param plain: instruction that can be copied, for comparison.
    """
    made, done = _steps(trial, code, state, describe)
    made_plain, done_plain = _steps(trial, plain, state, describe)
    rows = [f"{word} {', '.join(lines)}" for word, lines in (
        ("decided in", _own(made.lines, made_plain.lines)),
        ("carried out in", _own(done.lines, done_plain.lines))) if lines]
    return "\n".join(rows + _kept(trial, made, made_plain))


def _kept(trial: Trial, made: _Steps, plain: _Steps) -> list[str]:
    """Describe the members that differ between two probes, and name the lines that wrote them."""
    rows = []
    for path, offset, size in trial.module.probe.members():
        value, other = (steps.probe[offset : offset + size] for steps in (made, plain))
        if value == other or path not in made.writers:
            continue
        text = (hex(int.from_bytes(value, "little")) if size <= 8
                else value[:SHOWN].hex(" ") + " ..." * (size > SHOWN))
        rows.append(f"{path} is {text}, written by {', '.join(made.writers[path][-WRITERS:])}")
    return rows


def _own(lines: list[str], others: list[str]) -> list[str]:
    """Return each function's last trace line that is not in ``others``, most recent first.

    If there is no such line, return the last line.
    """
    known = set(others)
    last_lines: dict[str, str] = {}
    for line in reversed(lines):
        if line not in known:
            last_lines.setdefault(line.partition(" ")[0], line)
    return list(last_lines.values())[:FUNCTIONS] or lines[-1:]


def _steps(trial: Trial, code: bytes, state: int, describe: Describe) -> tuple[_Steps, _Steps]:
    """Trace the module while it creates a probe, and while it handles a firing of that probe."""
    machine, (before, after) = trial.machine, trial.around(code)
    begin = trial.function.address
    sample = Sample(code, begin + len(before))
    content = before + code + after
    size = len(content)

    def make(watch: MadeProbe | None) -> _Steps:
        machine.restore(trial.base)
        machine.write_code(begin, content.ljust(size + 16, trial.trap.breakpoint(4)[:1]))
        return _stepped(trial, {trial.module.enter(NAME, begin, size)}, describe, watch)

    made = make(None)
    probe = trial.module.probes(sample.address, sample.after).get(sample.address)
    if probe is not None:
        made = make(probe)  # the guest was restored, so the probe gets the same address
    placed = trial.place([code])[0]
    if placed.probe is None:
        return made, _Steps()
    trial.enable(placed, True)
    trial.prepare(sample, state)
    done = _stepped(trial, {sample.after}, describe, None)
    trial.restart()
    return made, done


def _stepped(trial: Trial, ends: set[int], describe: Describe, watch: MadeProbe | None) -> _Steps:
    """Single-step the guest to one of ``ends`` and return the trace.

    :param watch: probe whose members are watched for changes, or None.
    """
    machine, steps = trial.machine, _Steps()
    size = trial.module.probe.size
    members = trial.module.probe.members()
    module = _module(trial)
    line, last = "", 0
    before = machine.read(watch.place, size) if watch is not None else b""
    for pc in _addresses(trial, ends):
        if watch is not None and (now := machine.read(watch.place, size)) != before:
            # Attribute a write by a kernel function (memcpy) to the module's line that calls it.
            line = describe(last) if last else line
            for path, offset, length in members:
                part = slice(offset, offset + length)
                if now[part] != before[part]:
                    writers = steps.writers.setdefault(path, [])
                    if line not in writers:
                        writers.append(line)
            before = now
        if module.address <= pc < module.end:
            line, last = describe(pc) or line, pc
            if line and (not steps.lines or steps.lines[-1] != line):
                steps.lines.append(line)
    steps.probe = machine.read(watch.place, size) if watch is not None else bytes(size)
    return steps


def _module(trial: Trial) -> Module:
    return next(m for m in trial.machine.image.modules if m.name == trial.module.file)


def _addresses(trial: Trial, ends: set[int]) -> Iterator[int]:
    """Yield the pc of each instruction; a call into the kernel counts as one step."""
    machine, module, stops = trial.machine, _module(trial), [*ends, *trial.faults.handlers]
    for _ in range(STEPS):
        before = machine.pc
        yield before
        machine.run(Until(instructions=machine.instructions + 1))
        if module.address <= before < module.end and not module.address <= machine.pc < module.end:
            back = _return_address(trial)
            if module.address <= back < module.end and machine.pc not in stops:
                machine.run(Until(addresses=[back, *stops],
                                  instructions=machine.instructions + AWAY))
        if machine.pc in stops:
            return


def _return_address(trial: Trial) -> int:
    """Return the return address of the function that has just been called."""
    machine = trial.machine
    return machine.arch.return_address(machine)
