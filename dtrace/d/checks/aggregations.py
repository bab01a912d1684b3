"""Checks of aggregations: ``@name[keys] = function(...)``, and ``@name`` as an argument."""

from dtrace.d.checks.arrays import hold_keys, key_types
from dtrace.d.checks.calls import check_call
from dtrace.d.checks.conversions import typed
from dtrace.d.checks.environment import Environment
from dtrace.d.language import syntax
from dtrace.d.language.errors import DError
from dtrace.d.language.identifiers import AGGREGATING, FUNCTIONS, AggregationInfo
from dtrace.d.language.types import DYNAMIC, is_integer


def check_aggregation(env: Environment, node: syntax.Aggregation) -> syntax.Expression:
    """Check ``@name`` as an argument of an action.

    :raises DError: if the aggregation does not exist or has different keys.
    """
    info = env.aggregations.get(node.name)
    if info is None and node.keys:
        info = AggregationInfo(node.name, line=node.place.line)
        env.aggregations[node.name] = info
        info.keys = key_types([env.read(k) for k in node.keys], "aggregation", node.place)
    if info is None:
        raise DError("D_IDENT_UNDEF",
                     f"failed to resolve {node.name}: Unknown variable name", node.place)
    keys = [env.read(key) for key in node.keys]
    if keys:
        hold_keys(info.name, info.keys, keys, node.place)
    use = syntax.AggregationUse(node.place, info, keys)
    return typed(use, DYNAMIC)


def check_aggregate(env: Environment, node: syntax.Assign) -> syntax.Expression:
    """Check an aggregating statement, ``@name[keys] = function(...)``.

    :raises DError: if the function is not an aggregating function, or if the aggregation was used
        before with a different function or different keys.
    """
    left, place = node.left, node.place
    assert isinstance(left, syntax.Aggregation)
    info = env.aggregations.get(left.name)
    right = node.right
    named = isinstance(right, syntax.Call) and isinstance(right.function, syntax.Name)
    name = right.function.name if named else ""  # type: ignore[attr-defined]
    if node.operator or name not in AGGREGATING:
        if isinstance(right, syntax.Call):
            _check_callable(env, right)
        raise DError("D_AGG_FUNC", f"{left.name} must be assigned the result of an aggregating "
                     "function", place)
    assert isinstance(right, syntax.Call)
    function = AGGREGATING[name]
    if info is None:
        info = AggregationInfo(left.name, line=left.place.line)
    elif info.function is not None and info.function is not function:
        raise DError("D_AGG_REDEF", f"aggregation redefined: {left.name}\n\t current: "
                     f"{left.name} = {name}( )\n\tprevious: {left.name} = "
                     f"{info.function.name}( ) : line {info.line}", place)
    value = check_call(env, right)
    assert isinstance(value, syntax.FunctionCall)
    keys = [env.read(key) for key in left.keys]
    if info.keys is None:
        info.keys = key_types(keys, "aggregation", place)
        info.unit = _time_unit(keys[0]) if len(keys) == 1 else None
    else:
        hold_keys(info.name, info.keys, keys, left.place)
    info.function = function
    env.aggregations[left.name] = info
    use = syntax.AggregationUse(left.place, info, keys)
    use.type = DYNAMIC
    node.left, node.right = use, value
    return typed(node, DYNAMIC)


def _check_callable(env: Environment, call: syntax.Call) -> None:
    """Check that a call names a known function.

    :raises DError: if it does not.
    """
    if not isinstance(call.function, syntax.Name):
        raise DError("D_FUNC_IDENT", "function designator is not of function type", call.place)
    if call.function.name not in FUNCTIONS:
        check_call(env, call)


def _time_unit(node: syntax.Expression) -> int | None:
    """Return the unit, in nanoseconds, of an expression that is computed from a time.

    The result is 0 if the expression is computed from a time but its unit cannot be determined,
    and None if it is not a time.
    """
    match node:
        case syntax.ContextUse() | syntax.HostedUse():
            return 1 if node.name in ("timestamp", "vtimestamp", "walltimestamp") else None
        case syntax.Binary(operator="+" | "-" | "*" | "/" | "%" | "<<" | ">>"):
            units = [_time_unit(node.left), _time_unit(node.right)]
            match node.operator, units, node.right:
                case _, [None, None], _:
                    return None
                case "/", [int(unit), None], syntax.Number(value=value):
                    return unit * value
                case "+" | "-" | "%", [int(unit), None], _:
                    return unit
                case "+" | "-", [int(unit), int(other)], _:
                    return unit if unit == other else 0
            return 0
        case syntax.Cast():
            return _time_unit(node.operand) if is_integer(node.to) else None
    return None
