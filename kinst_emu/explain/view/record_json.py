"""JSON form of a recorded firing and the steps of its explanation."""

from typing import Any

from kinst_emu.explain.record.clause import Narration
from kinst_emu.explain.record.seen_firing import SeenFiring
from kinst_emu.explain.steps.explained import Explained
from kinst_emu.explain.steps.step import Step, Table


def explained_as_json(explained: Explained) -> dict[str, Any]:
    """Return an explained firing and its steps as JSON values."""
    return {"firing": firing_as_json(explained.firing),
            "what-if": None if explained.wrong is None else firing_as_json(explained.wrong),
            "steps": [step_as_json(step) for step in explained.steps]}


def firing_as_json(firing: SeenFiring) -> dict[str, Any]:
    """Return a recorded firing as JSON values, with bytes as hexadecimal strings."""
    return {
        "architecture": firing.architecture, "function": firing.function.name,
        "offset": firing.instruction.offset, "address": firing.instruction.address,
        "hit": firing.hit, "original": firing.original.hex(), "patched": firing.patched.hex(),
        "slot": firing.slot, "trampoline": firing.trampoline.hex(), "second": firing.second,
        "fired": firing.fired, "what-if": firing.mistake.kind, "strayed": firing.mistake.strayed,
        "ended": firing.mistake.ended, "between": firing.between,
        "rows": [{"address": row.address, "bytes": row.code.hex(), "registers": row.registers}
                 for row in firing.rows],
        "frames": [{"row": frame.row, "address": frame.address, "breakpoint": frame.breakpoint,
                    "before": frame.before.hex(), "after": frame.after.hex()}
                   for frame in firing.frames],
        "stacks": [{"row": row, "address": stack.address, "bytes": stack.content.hex()}
                   for row, stack in firing.memory.stacks.items()],
        "stores": [{"row": row, "address": store.address, "physical": store.physical,
                    "before": store.before.hex(), "after": store.after.hex()}
                   for row, stores in firing.memory.stores.items() for store in stores],
        "device_stores": [{"physical": at, "bytes": size, "value": value}
                          for at, size, value in firing.memory.devices],
        "clause": None if firing.narration is None else _narration(firing.narration),
    }


def _narration(narration: Narration) -> dict[str, Any]:
    return {"text": narration.text, "executed": narration.executed,
            "left": narration.left, "aggregated": narration.aggregated,
            "instructions": [{"place": one.place, "text": one.text, "line": one.line,
                              "before": one.before, "after": one.after, "told": one.effect()}
                             for one in narration.instructions]}


def step_as_json(step: Step) -> dict[str, Any]:
    """Return a step as JSON values."""
    return {"name": step.name, "title": step.title, "row": step.row, "handles": step.handles,
            "wrong": step.wrong, "parts": [
        {"heads": part.heads, "rows": part.rows, "marked": sorted(part.marked)}
        if isinstance(part, Table) else part
        for part in step.parts]}
