"""The Python interface of kinst-emu, a DTrace for a FreeBSD kernel that runs inside Python.

    import kinst_emu

    machine = kinst_emu.open("teaching/amd64").boot()
    with machine.probe("kinst::strlen:", lambda firing: print(firing, firing.registers["rdi"])):
        print(machine.call("strlen", "hello"))

Names are loaded on first use, since the commands live in this package, too.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dwarf.values import CArray, CEnum, CPointer, CStruct, addressof, sizeof, typeof
    from emu.guests.registry import PROMPTS
    from emu.host.errors import (
        ImageError,
        KinstError,
        MachineError,
        MemoryAccessError,
        SnapshotError,
    )
    from emu.machine.call import CallError
    from emu.machine.machine import Stop, StopReason
    from images.boots import BootError
    from kinst.probes.probed_code import ProbeError
    from kinst_emu.api.assert_relocates import assert_relocates
    from kinst_emu.api.firing import Fired, Firing
    from kinst_emu.api.kernel import Kernel, images
    from kinst_emu.api.kernel import open_kernel as open
    from kinst_emu.api.kernel_file import Instruction
    from kinst_emu.api.machine import Machine, State
    from kinst_emu.api.probes import Probes
    from kinst_emu.api.program import Program, Record
    from kinst_emu.api.recording import Moment, Recording, Written
    from kinst_emu.api.walk import Here, Walk

_FROM = {
    "dwarf.values": ("CArray", "CEnum", "CPointer", "CStruct", "addressof", "sizeof", "typeof"),
    "emu.machine.call": ("CallError",),
    "emu.host.errors": ("ImageError", "KinstError", "MachineError", "MemoryAccessError",
                        "SnapshotError"),
    "emu.machine.machine": ("Stop", "StopReason"),
    "emu.guests.registry": ("PROMPTS",),
    "images.boots": ("BootError",),
    "kinst.probes.probed_code": ("ProbeError",),
    "kinst_emu.api.firing": ("Fired", "Firing"),
    "kinst_emu.api.kernel": ("Kernel", "images", "open"),
    "kinst_emu.api.kernel_file": ("Instruction",),
    "kinst_emu.api.machine": ("Machine", "State"),
    "kinst_emu.api.probes": ("Probes",),
    "kinst_emu.api.program": ("Program", "Record"),
    "kinst_emu.api.recording": ("Moment", "Recording", "Written"),
    "kinst_emu.api.walk": ("Here", "Walk"),
    "kinst_emu.api.assert_relocates": ("assert_relocates",),
}
_MODULES = {name: module for module, names in _FROM.items() for name in names}

__all__ = [
    "PROMPTS", "BootError", "CArray", "CEnum", "CPointer", "CStruct", "CallError", "Fired",
    "Firing", "Here", "ImageError", "Instruction", "Kernel", "KinstError", "Machine",
    "MachineError", "MemoryAccessError", "Moment", "ProbeError", "Probes", "Program", "Record",
    "Recording", "SnapshotError", "State", "Stop", "StopReason", "Walk", "Written", "addressof",
    "assert_relocates", "images", "open", "sizeof", "typeof",
]


def check_rooms() -> None:
    """Check that no other file, such as a script named ``images.py``, hides a package of kinst-emu.

    :raises ImportError: naming the file that hides a package.
    """
    ours = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for room in ("dtrace", "dwarf", "emu", "images", "kinst"):
        if room in sys.modules:
            candidates = [getattr(sys.modules[room], "__file__", None) or ""]
        else:  # search as import does; loading importlib.util would take too long
            candidates = [path for folder in sys.path
                     for path in (os.path.join(folder, room, "__init__.py"),
                                  os.path.join(folder, f"{room}.py")) if os.path.isfile(path)]
        place = os.path.realpath(candidates[0]) if candidates else ""
        if place and place != os.path.join(ours, room, "__init__.py"):
            raise ImportError(f"{place} hides the package '{room}' of kinst-emu: rename that file, "
                              "or start Python in another directory")


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    check_rooms()
    value = getattr(importlib.import_module(module), "open_kernel" if name == "open" else name)
    globals()[name] = value
    return value


def load_ipython_extension(ipython: object) -> None:
    """Load the extension for IPython and notebooks (``%load_ext kinst_emu``)."""
    importlib.import_module("kinst_emu.shell.extension").load(ipython)


def unload_ipython_extension(ipython: object) -> None:
    """Unload the extension from IPython (``%unload_ext kinst_emu``)."""
    importlib.import_module("kinst_emu.shell.extension").unload(ipython)


def __dir__() -> list[str]:
    return list(__all__)
