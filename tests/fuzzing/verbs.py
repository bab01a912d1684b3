"""Fuzzer that calls the public members of the Python API with random arguments.

Introspection finds the public names of the classes. Some arguments fit the annotations and some do
not. A call may return, or raise a KinstError, or raise a TypeError, ValueError, OverflowError or
KeyError for a wrong argument, or an AttributeError for an object of a wrong type. Anything else is
a bug, and so is a machine with another digest after it is restored.
"""

import contextlib
import inspect
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kinst_emu
from dwarf.values import CArray, CPointer, CStruct
from kinst_emu.api.kernel import Kernel
from kinst_emu.api.machine import Machine
from kinst_emu.api.probes import Probes
from kinst_emu.api.program import Program
from kinst_emu.api.recording import Recording
from tests.conftest import ARCHES

RIGHT = (kinst_emu.KinstError, TypeError, ValueError, OverflowError, KeyError)
CLASSES = (Kernel, Machine, Probes, Program, Recording)
LEFT_OUT = {
    "explore": "boots other machines (tests/kinst_emu/explore)",
    "on_qemu": "starts a process (tests/emu/qemu)",
    "command": "needs FreeBSD (bench/fuzz guests)", "emulated": "is not part of the interface",
    "relocations": "runs a laboratory (bench/fuzz answers)",
    "begin": "is called by trace", "end": "is called by close", "flame_graph": "draws a picture",
    "make": "is called by probe", "fired": "is called by the machine",
    "moved": "is called by restore", "machine": "is tested as a class",
}
# Parameters whose values are bounded, since a call would otherwise take too long
BOUNDED = ("instructions", "limit", "nanoseconds", "count", "frames")
MOST = 20_000
NUMBERS = (0, 1, -1, 2, 8, 0x7F, 0xFF, 1 << 16, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63,
           (1 << 64) - 1, 1 << 64, -(1 << 63), 1 << 100, 0xFFFF_FFFF_8020_0000, 0x4020_0000)
TEXTS = ("strlen", "fibonacci", "malloc", "", " ", "\0", "a" * 5000, "strlen+0x4", "kinst::strlen:",
         "kinst::strlen:0", "fbt::strlen:entry", "fbt:::entry", "fbt::*:return", "kinst::mix:entry",
         "struct note", "int", "char *", "note", "ticks", "'", '"', "strlen(\"a\")", "(" * 500,
         "fibonacci(5)", "BEGIN { exit(0); }", "fbt::strlen:entry { @[stack()] = count(); }", "%s",
         "64M", "guest", "direct", "double", "/", "../..", "\ud800", "\x1b[2J", "50%", "end",
         "1.5s", "strlen#1", "0xffffffffffffffffffff", "rax", "x0", "a0", "sp", "teaching> ")


@dataclass
class Ground:
    """A machine and its saved state for each architecture, and a directory for output files."""

    folder: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)
    machines: dict[str, tuple[Machine, kinst_emu.State, str]] = field(default_factory=dict)
    junk: bool = False  # whether some argument did not fit its annotation

    def machine(self, arch: str) -> tuple[Machine, kinst_emu.State, str]:
        """Return the machine, state and digest for an architecture; the first call boots it."""
        if arch not in self.machines:
            new = kinst_emu.open(f"teaching/{arch}").boot("64M")
            self.machines[arch] = new, new.keep(), new.digest()
        return self.machines[arch]


def ground() -> Ground:
    """Return a ``Ground`` without machines, which are booted on demand."""
    return Ground()


def names(kind: type) -> list[str]:
    """Return the names of the public members of a class that the fuzzer calls."""
    return [name for name in dir(kind) if not name.startswith("_") and name not in LEFT_OUT]


def anything(rng: Any, arch: str, made: Ground) -> object:
    """Return a random value of any type, regardless of the parameter's annotation."""
    machine, state, _digest = made.machine(arch)
    made.junk = True
    return rng.choice((
        rng.choice(NUMBERS), rng.choice(TEXTS), rng.choice(TEXTS).encode("utf-8", "replace"), None,
        True, 0.5, [], {}, (), object(), b"\0" * 100_000, state, machine, float("nan"),
        Path(made.folder.name) / "some", Path("/dev/null"), lambda *_: None, [1] * 1000))


def fitting(rng: Any, parameter: inspect.Parameter, arch: str, made: Ground) -> object:
    """Return a random value that usually fits the annotation of a parameter."""
    if parameter.name in BOUNDED:
        return rng.choice((0, 1, -1, rng.randrange(MOST), None, "1"))
    if rng.random() < 0.15:
        return anything(rng, arch, made)
    kind = str(parameter.annotation)
    fits = [rng.choice(NUMBERS)] * ("int" in kind) + [rng.choice(TEXTS)] * ("str" in kind)
    fits += [rng.choice(TEXTS).encode("utf-8", "replace")] * ("bytes" in kind)
    fits += [Path(made.folder.name) / "some"] * ("Path" in kind)
    fits += [made.machine(arch)[1]] * ("State" in kind) + [lambda _firing: None] * ("Fire" in kind)
    fits += [rng.choice((True, False))] * ("bool" in kind)
    return rng.choice(fits) if fits else anything(rng, arch, made)


def arguments(rng: Any, call: Any, arch: str, made: Ground
              ) -> tuple[list[object], dict[str, object]]:
    """Return random positional and keyword arguments for a callable."""
    positional, named = list[object](), dict[str, object]()
    for each in inspect.signature(call).parameters.values():
        if each.kind is each.VAR_POSITIONAL:
            positional += [fitting(rng, each, arch, made) for _ in range(rng.choice((0, 1, 2, 12)))]
        elif each.kind is each.VAR_KEYWORD:
            continue
        elif each.name in BOUNDED or each.default is each.empty or rng.random() < 0.4:
            value = fitting(rng, each, arch, made)
            if each.kind is each.KEYWORD_ONLY or named or each.default is not each.empty:
                named[each.name] = value
            else:
                positional.append(value)
    return positional, named


def used(value: object, rng: Any) -> None:
    """Format a returned value, or elements of a returned iterator, as a Python prompt would."""
    repr(value)
    if isinstance(value, CStruct | CPointer | CArray):
        str(value)
    elif hasattr(value, "__next__"):
        with contextlib.suppress(StopIteration):
            for _ in range(rng.randrange(3)):
                repr(next(value))


def once(rng: Any, made: Ground) -> str:
    """Call a few random methods of the interface; return ``returned`` or ``refused``."""
    arch = rng.choice(ARCHES)
    machine, state, digest = made.machine(arch)
    outcome, made.junk = "returned", False
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(rng.choice((1, 2, 4))):
                kind = rng.choice(CLASSES)
                instance = target(rng, kind, machine, made, stack)
                name = rng.choice(names(kind))
                value = getattr(instance, name)
                if callable(value):
                    positional, named = arguments(rng, value, arch, made)
                    value = value(*positional, **named)
                    if hasattr(value, "__enter__") and rng.random() < 0.7:
                        value = stack.enter_context(value)
                used(value, rng)
    except RIGHT:
        outcome = "refused"
    except AttributeError:
        if not made.junk:
            raise
        outcome = "refused"
    if machine.program is not None:
        machine.program.close()
    machine.close_probes()
    machine.restore(state)
    if machine.digest() != digest:
        raise AssertionError("the digest differs after the state was restored")
    return outcome


def target(rng: Any, kind: type, machine: Machine, made: Ground,
           stack: contextlib.ExitStack) -> object:
    """Return an object of a given class."""
    if kind is Kernel:
        return kinst_emu.open(machine.kernel.path)
    if kind is Probes:
        return machine.probe("kinst::strlen:")
    if kind is Program:
        return machine.program or machine.trace("fbt::strlen:entry { @ = count(); trace(arg0); }")
    if kind is Recording:
        path = Path(made.folder.name) / "a.rec"
        with machine.record(path):
            machine.call("strlen", "hello")
        return kinst_emu.Recording(path, str(machine.kernel.path))
    return machine
