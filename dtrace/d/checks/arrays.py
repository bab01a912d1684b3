"""Checks of subscripts: associative arrays, ``regs[]``, inlines with keys, and C's ``a[i]``."""

from dtrace.d.checks.calls import hold_arguments
from dtrace.d.checks.conversions import passed, shown_type, typed
from dtrace.d.checks.environment import Environment
from dtrace.d.checks.probe_arguments import probe_argument
from dtrace.d.checks.variables import bad_reference, expand_inline, variable_use
from dtrace.d.language import syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.identifiers import FUNCTIONS, REGISTERS, Scope, Variable
from dtrace.d.language.types import DYNAMIC, UNSIGNED_LONG, is_dynamic, is_integer, is_void, spelled
from dwarf.types import Type

MAX_KEYS = 8


def check_index(env: Environment, node: syntax.Index) -> syntax.Expression:
    """Check a subscript, ``base[keys]``.

    :raises DError: if the base is not an array, or the keys differ from those of its first use.
    """
    place, base = node.place, node.base
    if isinstance(base, syntax.Aggregation):
        raise DError("D_AGG_MDIM", f"improper attempt to reference {base.name} as a "
                     "multi-dimensional array", place)
    if isinstance(base, syntax.Name):
        special = _special_array(env, node, base.name)
        if special is not None:
            return special
    variable = _associative_array(env, base)
    if variable is not None:
        keys = [env.read(key) for key in node.keys]
        variable = env.new(variable)
        if len(keys) > MAX_KEYS:
            raise DError("", "Insufficient tuple registers to generate code", place)
        if variable.keys is None:
            variable.keys = key_types(keys, "associative array", place)
        else:
            hold_keys(variable.name, variable.keys, keys, base.place)
        assert variable.keys is not None
        held = [passed(k, t) for k, t in zip(keys, variable.keys, strict=True)]
        return variable_use(place, variable, held)
    if len(node.keys) != 1:
        raise DError("D_ARR_BADREF", f"cannot access {_described(base)} as an associative "
                     "array", place)
    total = syntax.Binary(place, "+", base, node.keys[0])
    return env.check(syntax.Unary(place, "*", total))


def _associative_array(env: Environment, base: syntax.Expression) -> Variable | None:
    """Return the associative array that a name denotes or creates, or None for other names."""
    if isinstance(base, syntax.Name) and "`" not in base.name and base.name not in env.bound:
        name = base.name
        known = env.variables.get((Scope.GLOBAL, name))
        if known is not None:
            if known.keys is None and not known.known:
                raise bad_reference(base.place, "scalar", name, "associative array")
            return known if known.keys is not None else None
        if env.knows(name):
            if name in FUNCTIONS:
                raise bad_reference(
                    base.place, FUNCTIONS[name].role.value, name, "associative array")
            return None
        return Variable(name, Scope.GLOBAL, DYNAMIC)
    if isinstance(base, syntax.MemberAccess) and isinstance(base.base, syntax.Name) and base.arrow \
            and base.base.name in ("self", "this") and base.base.name not in env.bound:
        scope = Scope.THREAD if base.base.name == "self" else Scope.LOCAL
        known = env.variables.get((scope, base.name))
        if known is not None and known.keys is None and known.known:
            return None
        if scope is Scope.LOCAL:
            raise DError("D_ARR_LOCAL", "local variables may not be used as associative "
                         f"arrays: {base.name}", base.place)
        return known if known is not None else Variable(base.name, scope, DYNAMIC)
    return None


def _special_array(env: Environment, node: syntax.Index, name: str) -> syntax.Expression | None:
    """Check an element of ``args[]``, ``regs[]`` or ``uregs[]``, or an inline with keys.

    Return None if the name is none of these.
    """
    place = node.place
    inline = env.inlines.get(name)
    if inline is not None and inline.keys is not None:
        arguments = [env.read(key) for key in node.keys]
        hold_keys(name, [kind for _n, kind in inline.keys], arguments, node.base.place)
        return expand_inline(env, place, inline, arguments)
    if name in env.bound or (name != "args" and name not in REGISTERS):
        return None
    keys = [env.read(key) for key in node.keys]
    if len(keys) != 1:
        plural = " " if len(keys) == 1 else "s "
        raise DError("D_PROTO_LEN", f"{name}[ ] prototype mismatch: {len(keys)} arg{plural}"
                     "passed, 1 expected", place)
    if name == "args":
        return probe_argument(env, place, keys[0])
    if not is_integer(keys[0].kind):
        raise DError("D_PROTO_ARG", f"{name}[ ] argument #1 is incompatible with prototype:\n\t"
                     f"prototype: integer\n\t argument: {spelled(keys[0].kind)}", place)
    if isinstance(keys[0], syntax.Number) and not 0 <= keys[0].value < 1 << 31:
        raise DError("D_REGS_IDX", f"index {keys[0].value} is out of range for array {name}",
                     place)
    use = syntax.HostedUse(place, name, REGISTERS[name], keys[0])
    use.lvalue = True
    return typed(use, UNSIGNED_LONG)


def hold_keys(name: str, wanted: list[Type] | None, keys: list[syntax.Expression],
              place: SourcePlace) -> None:
    """Check the keys of an array or aggregation against the key types of its first use.

    :raises DError: if their number or their types differ.
    """
    if wanted is None:
        return
    hold_arguments(f"{name}[ ]", [(spelled(k), k) for k in wanted], len(wanted), len(wanted),
                   keys, place, "key")


def key_types(keys: list[syntax.Expression], container: str, place: SourcePlace) -> list[Type]:
    """Return the key types of an array's or aggregation's first use, which later uses must match.

    :raises DError: if an expression cannot be used as a key.
    """
    for number, key in enumerate(keys, 1):
        if is_dynamic(key.kind) or is_void(key.kind):
            raise DError("D_KEY_TYPE", f"{shown_type(key)} expression may not be used as "
                         f"{container} index: key #{number}", place)
    return [key.kind for key in keys]


def _described(node: syntax.Expression) -> str:
    match node:
        case syntax.Name(name=name):
            return f"identifier {name}"
        case syntax.Number(value=value):
            return f"integer constant {value:#x}"
        case syntax.Text(content=content):
            return f'string constant "{content.decode(errors="replace")}"'
        case syntax.Binary(operator=operator) | syntax.Unary(operator=operator):
            return f"operator {operator}"
        case syntax.MemberAccess(name=name, arrow=arrow):
            return f"operator {'->' if arrow else '.'}"
    return "expression"
