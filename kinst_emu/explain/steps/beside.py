"""Explanations for several architectures, side by side and aligned by step name."""

from collections.abc import Mapping, Sequence

from kinst_emu.explain.steps.step import Step

# (name of a step, the step on each architecture, or None for an architecture without this step)
Beside = list[tuple[str, list[Step | None]]]


def beside(explained: Mapping[str, Sequence[Step]]) -> Beside:
    """Align the steps of several explanations by name.

    A step that some explanations lack keeps the position that it has in the others.
    """
    order = list[str]()
    for steps in sorted(explained.values(), key=len, reverse=True):
        at = 0
        for step in steps:
            if step.name not in order:
                order.insert(at, step.name)
            at = order.index(step.name) + 1
    known = [{step.name: step for step in steps} for steps in explained.values()]
    return [(name, [steps.get(name) for steps in known]) for name in order]
