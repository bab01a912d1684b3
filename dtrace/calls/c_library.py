"""Prototypes of the C library's string functions (C11, 7.24).

Kernels implement these functions in assembly, so debug data does not describe them.
"""

from dwarf.types import Integer, Parameter, Pointer, Procedure, Qualified, Type, Typedef, Void

CHAR = Integer("char", 1, True, "char")
INT = Integer("int", 4, True)
SIZE = Typedef("size_t", lambda: Integer("unsigned long", 8, False))


def _pointer(target: Type, constant: bool) -> Type:
    return Pointer((lambda: Qualified("const", lambda: target)) if constant else lambda: target)


STRING, TEXT = _pointer(CHAR, True), _pointer(CHAR, False)
SOURCE, MEMORY = _pointer(Void(), True), _pointer(Void(), False)


def _of(result: Type, **parameters: Type) -> Procedure:
    def parameter(name: str, kind: Type) -> Parameter:
        return Parameter(name, lambda: kind)

    return Procedure(tuple(parameter(*p) for p in parameters.items()), False, lambda: result)


PROTOTYPES = {
    "memchr": _of(MEMORY, s=SOURCE, c=INT, n=SIZE),
    "memcmp": _of(INT, s1=SOURCE, s2=SOURCE, n=SIZE),
    "memcpy": _of(MEMORY, s1=MEMORY, s2=SOURCE, n=SIZE),
    "memmove": _of(MEMORY, s1=MEMORY, s2=SOURCE, n=SIZE),
    "memset": _of(MEMORY, s=MEMORY, c=INT, n=SIZE),
    "strcat": _of(TEXT, s1=TEXT, s2=STRING),
    "strchr": _of(TEXT, s=STRING, c=INT),
    "strcmp": _of(INT, s1=STRING, s2=STRING),
    "strcpy": _of(TEXT, s1=TEXT, s2=STRING),
    "strcspn": _of(SIZE, s1=STRING, s2=STRING),
    "strlen": _of(SIZE, s=STRING),
    "strncat": _of(TEXT, s1=TEXT, s2=STRING, n=SIZE),
    "strncmp": _of(INT, s1=STRING, s2=STRING, n=SIZE),
    "strncpy": _of(TEXT, s1=TEXT, s2=STRING, n=SIZE),
    "strpbrk": _of(TEXT, s1=STRING, s2=STRING),
    "strrchr": _of(TEXT, s=STRING, c=INT),
    "strspn": _of(SIZE, s1=STRING, s2=STRING),
    "strstr": _of(TEXT, s1=STRING, s2=STRING),
}
