"""All that a program can call, by name: subroutines, actions, aggregating functions."""

from dtrace.d.actions import ACTIONS
from dtrace.d.identifiers import AGGREGATING, SUBROUTINES, Builtin

FUNCTIONS: dict[str, Builtin] = (
    SUBROUTINES | {name: action.function for name, action in ACTIONS.items()} | AGGREGATING)
