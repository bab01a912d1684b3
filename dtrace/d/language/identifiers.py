"""Tables of D's built-in variables and functions, with their prototypes.

The DTrace guide describes them in "Variables", "Actions and subroutines" and "Aggregations".  The
actions are compiled in ``dtrace/d/compile/actions.py``.

In a prototype, ``@`` accepts any type, ``[type]`` is optional, and ``...`` accepts any number of
further arguments.
"""

import enum
from dataclasses import dataclass, field, replace

from dtrace.bpf.layout import REGS, UREGS, Aggregate, ContextOffset, Helper
from dwarf.types import Type


class Role(enum.Enum):
    """Kind of a built-in function, with the name of the kind in error messages."""

    SUBROUTINE = "function"
    ACTION = "tracing function"
    AGGREGATING = "aggregating function"


@dataclass(frozen=True)
class Builtin:
    """A built-in function.

    :param number: helper that implements a subroutine; 0 for other functions.
    :param destructive: whether the function requires ``-w``.
    """

    name: str
    role: Role
    result: str
    parameters: tuple[str, ...]
    number: int = 0
    destructive: bool = False

    @property
    def least(self) -> int:
        """Minimum number of arguments."""
        return sum(1 for p in self.parameters if not p.startswith("[") and p != "...")

    @property
    def most(self) -> int | None:
        """Maximum number of arguments, or None if there is no limit."""
        return None if "..." in self.parameters else len(self.parameters)


def _prototype(role: Role, row: str, number: int) -> Builtin:
    """Parse a C prototype without a semicolon."""
    head, _mark, rest = row.strip().rstrip(")").partition("(")
    *result, name = head.split()
    parameters = tuple(p.strip() for p in rest.split(",") if p.strip())
    return Builtin(name, role, " ".join(result), parameters, number)


def _functions(role: Role, rows: str, first: int = 0, destructive: tuple[str, ...] = ()
               ) -> dict[str, Builtin]:
    found = {}
    for number, row in enumerate(rows.strip().splitlines()):
        function = _prototype(role, row, first + number if first else 0)
        found[function.name] = replace(function, destructive=function.name in destructive)
    return found


SUBROUTINES = _functions(Role.SUBROUTINE, """
    void * alloca(size_t)
    string basename(const char *)
    void bcopy(void *, void *, size_t)
    string cleanpath(const char *)
    void * copyin(uintptr_t, size_t)
    string copyinstr(uintptr_t, [size_t])
    void copyinto(uintptr_t, size_t, void *)
    void copyout(void *, uintptr_t, size_t)
    void copyoutstr(char *, uintptr_t, size_t)
    string dirname(const char *)
    uint32_t htonl(uint32_t)
    uint64_t htonll(uint64_t)
    uint16_t htons(uint16_t)
    int index(const char *, const char *, [int])
    string inet_ntoa(in_addr_t *)
    string inet_ntoa6(struct in6_addr *)
    string inet_ntop(int, void *)
    string json(const char *, const char *)
    string lltostr(int64_t, [int])
    uintptr_t * memref(void *, size_t)
    string memstr(void *, char, size_t)
    int mutex_owned(struct mtx *)
    struct thread * mutex_owner(struct mtx *)
    int mutex_type_adaptive(struct mtx *)
    int mutex_type_spin(struct mtx *)
    uint32_t ntohl(uint32_t)
    uint64_t ntohll(uint64_t)
    uint16_t ntohs(uint16_t)
    int progenyof(pid_t)
    int rand()
    int rindex(const char *, const char *, [int])
    int rw_iswriter(struct rwlock *)
    int rw_read_held(struct rwlock *)
    int rw_write_held(struct rwlock *)
    int speculation()
    string strchr(const char *, char)
    string strjoin(const char *, const char *)
    size_t strlen(const char *)
    string strrchr(const char *, char)
    string strstr(const char *, const char *)
    string strtok(const char *, const char *)
    int64_t strtoll(const char *, [int])
    string substr(const char *, int, [int])
    int sx_exclusive_held(struct sx *)
    int sx_isexclusive(struct sx *)
    int sx_shared_held(struct sx *)
    string tolower(const char *)
    string toupper(const char *)
    string ddi_pathname(void *, int64_t)
    major_t getmajor(dev_t)
    minor_t getminor(dev_t)
    file_t * getf(int)
""", Helper.SUBROUTINE, destructive=("copyout", "copyoutstr"))
SUBROUTINES["progenyof"] = replace(SUBROUTINES["progenyof"], number=Helper.PROGENYOF)

ACTION_PROTOTYPES = _functions(Role.ACTION, """
    void breakpoint()
    void chill(int)
    void clear(...)
    void commit(int)
    void denormalize(...)
    void discard(int)
    void exit(int)
    void freopen(@, ...)
    void ftruncate()
    _symaddr func(uintptr_t)
    _symaddr sym(uintptr_t)
    _symaddr mod(uintptr_t)
    stack jstack(...)
    void normalize(...)
    void panic()
    void print(@)
    void printa(@, ...)
    void printf(@, ...)
    void printm(size_t, uintptr_t *)
    void raise(int)
    void setopt(const char *, [const char *])
    void speculate(int)
    stack stack(...)
    void stop()
    void system(@, ...)
    void trace(@)
    void tracemem(@, size_t, ...)
    void trunc(...)
    _usymaddr uaddr(uintptr_t)
    _usymaddr ufunc(uintptr_t)
    _usymaddr umod(uintptr_t)
    _usymaddr usym(uintptr_t)
    stack ustack(...)
""", destructive=("breakpoint", "chill", "freopen", "panic", "raise", "stop", "system"))

AGGREGATING = _functions(Role.AGGREGATING, """
    void avg(@)
    void count()
    void llquantize(@, int32_t, int32_t, int32_t, int32_t, ...)
    void lquantize(@, int32_t, int32_t, ...)
    void max(@)
    void min(@)
    void quantize(@, ...)
    void stddev(@)
    void sum(@)
""")
KINDS = {name: Aggregate[name.upper()] for name in AGGREGATING}

# Every function that a program can call.
FUNCTIONS: dict[str, Builtin] = SUBROUTINES | ACTION_PROTOTYPES | AGGREGATING

# The version of D that introduced a name, for names that are not in the first version.
SINCE = {
    **dict.fromkeys(
        "index freopen memref printm rindex strchr strrchr strstr strtok substr".split(), "1.1"),
    **dict.fromkeys(
        "func mod setopt sym uaddr ucaller ufunc umod ustackdepth usym".split(), "1.2"),
    **dict.fromkeys("htonl htonll htons ntohl ntohll ntohs".split(), "1.3"),
    **dict.fromkeys("inet_ntoa inet_ntoa6 inet_ntop".split(), "1.5"), "stddev": "1.6",
    "cpu": "1.6.3", "llquantize": "1.7", "tolower": "1.8", "toupper": "1.8", "print": "1.9",
    "getf": "1.10", "json": "1.11", "strtoll": "1.11", "jid": "1.13", "jailname": "1.13",
    "regs": "1.13",
}

# Variables in the context of a firing: name -> (type, offset).
CONTEXT = {
    **{f"arg{n}": ("int64_t", ContextOffset.ARGUMENTS + 8 * n) for n in range(10)},
    "id": ("uint_t", ContextOffset.ID), "epid": ("uint_t", ContextOffset.CLAUSE),
    "probeprov": ("string", ContextOffset.PROVIDER), "probemod": ("string", ContextOffset.MODULE),
    "probefunc": ("string", ContextOffset.FUNCTION), "probename": ("string", ContextOffset.NAME),
    "timestamp": ("uint64_t", ContextOffset.TIMESTAMP),
}
# Variables whose values the host supplies, with their types; the runtime refers to them by index.
HOSTED = {
    "caller": "uintptr_t", "cpu": "int", "curthread": "struct thread *", "errno": "int",
    "execargs": "string", "execname": "string", "gid": "gid_t", "ipl": "uint_t",
    "jailname": "string", "jid": "int", "pid": "pid_t", "ppid": "pid_t", "stackdepth": "uint32_t",
    "tid": "id_t", "ucaller": "uint64_t", "uid": "uid_t", "ustackdepth": "uint32_t",
    "vtimestamp": "uint64_t", "walltimestamp": "int64_t", "zonename": "string",
}
HOSTED_NUMBERS = {name: number for number, name in enumerate(HOSTED)}
REGISTERS = {"regs": REGS, "uregs": UREGS}  # arrays whose elements the host supplies


class Scope(enum.Enum):
    """Scope of a variable, with the prefix that selects the scope in D."""
    GLOBAL = ""
    THREAD = "self->"
    LOCAL = "this->"


@dataclass(eq=False)
class Variable:
    """A variable of a D program.

    :param keys: types of an associative array's keys; None for a scalar.
    :param number: number of a variable that is stored under keys (for a thread-local variable, the
        thread is one of them); -1 for any other.
    :param offset: offset in its region of a variable that is stored without keys.
    :param known: whether it was declared, assigned or read; a variable that is only mentioned has
        no value.
    """

    name: str
    scope: Scope
    type: Type
    keys: list[Type] | None = None
    number: int = -1
    offset: int = -1
    known: bool = False

    @property
    def kind(self) -> str:
        """Kind of the variable in error messages: "scalar" or "associative array"."""
        return "scalar" if self.keys is None else "associative array"


@dataclass(eq=False)
class AggregationInfo:
    """An aggregation of a D program.

    :param keys: types of the keys; None until the aggregation is first used.
    :param function: aggregating function; None until the aggregation is assigned.
    :param parameters: constant parameters of lquantize and llquantize.
    :param number: position in the order of first use.
    :param unit: nanoseconds per unit of its only key, if that is a time; 0 if the unit is unclear;
        None if the key is not a time.
    :param shapes: numbers of its shapes, by the form and size of each key.
    """

    name: str
    keys: list[Type] | None = None
    function: Builtin | None = None
    parameters: tuple[int, ...] = ()
    line: int = 0
    number: int = -1
    unit: int | None = None
    shapes: dict[tuple[tuple[str, int], ...], int] = field(default_factory=dict)


Part = tuple[Type, str, int]


@dataclass(eq=False)
class KeyShape:
    """Types and sizes of an aggregation's keys in one statement.

    :param parts: for each key: type, form ("value", "stack" and so on), size in bytes.
    :param like: number of the first statement with keys of the same forms and sizes; None: this
        one.
    """

    info: AggregationInfo
    parts: list[Part]
    like: int | None = None
