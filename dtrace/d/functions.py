"""All that a program can call, by name: subroutines, actions, aggregating functions."""

from dtrace.d.actions import ACTIONS
from dtrace.d.identifiers import AGGREGATING, SUBROUTINES, Function

FUNCTIONS: dict[str, Function] = (
    SUBROUTINES | {name: action.function for name, action in ACTIONS.items()} | AGGREGATING)
