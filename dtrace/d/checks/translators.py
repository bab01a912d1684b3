"""Selection of translators, for ``xlate`` and for probe arguments declared as translated."""

from dtrace.d.checks.conversions import fits, typed
from dtrace.d.checks.environment import Environment
from dtrace.d.language import syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.types import DYNAMIC, compatible, spelled
from dwarf.types import Pointer, Type, strip


def translation(env: Environment, place: SourcePlace, kind: Type, operand: syntax.Expression
                ) -> syntax.Expression:
    """Return the translation of a checked expression to a structure type or a pointer to one.

    :raises DError: if no translator between the types exists.
    """
    to = strip(kind)
    pointer = isinstance(to, Pointer)
    wanted = to.target if isinstance(to, Pointer) else kind
    candidates = [t for t in env.translators if compatible(t.to, wanted)]
    exact = [t for t in candidates if compatible(t.source, operand.kind)]
    fitting = exact or [t for t in candidates if fits(t.source, operand)]
    if fitting:
        translated = syntax.Translated(place, fitting[0], operand, pointer)
        return typed(translated, DYNAMIC)
    raise DError("D_XLATE_NONE", f'cannot translate from "{spelled(operand.kind)}" to '
                 f'"{spelled(kind)}"', place)
