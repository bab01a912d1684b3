"""Explanations of several architectures beside each other: their steps by name."""

from collections.abc import Mapping, Sequence

from kinst_emu.explain.steps.step import Step

Beside = list[tuple[str, list[Step | None]]]  # name; a step for each architecture, or none


def beside(explained: Mapping[str, Sequence[Step]]) -> Beside:
    """Steps of one name stand beside each other; one that not all have stands where it does in
    those that have it."""
    order = list[str]()
    for steps in sorted(explained.values(), key=len, reverse=True):
        at = 0
        for step in steps:
            if step.name not in order:
                order.insert(at, step.name)
            at = order.index(step.name) + 1
    known = [{step.name: step for step in steps} for steps in explained.values()]
    return [(name, [steps.get(name) for steps in known]) for name in order]
