"""Random C functions that store the arguments that they receive.

For every call, a module has a function ``callN`` that stores the bytes of its parameters in
``seen``, and a function ``driveN`` that calls it. Parameters are integers of all sizes, pointers,
enumerations and structures of 1 to 40 bytes. One call in eight is variadic. One in three returns a
structure; where the caller passes the address of the result, it takes the place of the first
argument.
"""

import random
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from images.compiler import tool

SEEN = 1024  # size of the array `seen` in bytes
MOST = 12  # maximum number of parameters of a function
SCALARS = {"signed char": 1, "unsigned char": 1, "short": 2, "unsigned short": 2, "int": 4,
           "unsigned int": 4, "long": 8, "unsigned long": 8, "char *": 8, "enum kind": 4,
           "_Bool": 1}
MEMBERS = {name: size for name, size in SCALARS.items() if name != "_Bool"}
KERNEL_FLAGS = {
    "amd64": ("-mcmodel=kernel", "-mno-red-zone", "-mno-sse", "-mno-mmx", "-msoft-float"),
    "arm64": ("-mgeneral-regs-only", "-fPIC"),
    "riscv64": ("-march=rv64imac", "-mabi=lp64", "-mcmodel=medany", "-fPIC")}
TRIPLES = {"amd64": "x86_64-unknown-freebsd15.0", "arm64": "aarch64-unknown-freebsd15.0",
           "riscv64": "riscv64-unknown-freebsd15.0"}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a generated function.

    :param size: size of the value in bytes
    :param members: (type, name, array length) of each member of a structure
    """

    type: str
    size: int
    members: tuple[tuple[str, str, int], ...] = ()
    packed: bool = False


@dataclass
class GeneratedCall:
    """A call to the generated function ``callN`` with the given parameters."""

    number: int
    parameters: list[Parameter]
    variadic: bool
    result: str = "void"
    more: list[int] = field(default_factory=list)  # variadic arguments after the parameters

    @property
    def name(self) -> str:
        """Return the name of the function."""
        return f"call{self.number}"

    def offsets(self) -> list[int]:
        """Return the offset of each parameter's bytes in the array ``seen``."""
        offsets, at = [], 0
        for parameter in self.parameters:
            offsets.append(at)
            at += -(-parameter.size // 8) * 8
        return offsets


def _structure(rng: random.Random, number: int) -> tuple[Parameter, str]:
    """Return a random structure parameter and its C declaration."""
    members, text = [], []
    budget = rng.choice((1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 20, 24, 32, 40))
    while True:
        kind = rng.choice([k for k, size in MEMBERS.items() if size <= budget] or ["unsigned char"])
        count = rng.choice((0, 0, 0, 2, 3)) if 3 * MEMBERS[kind] <= budget else 0
        name = f"m{len(members)}"
        members.append((kind, name, count))
        text.append(f"{kind} {name}[{count}];" if count else f"{kind} {name};")
        budget -= MEMBERS[kind] * max(count, 1)
        if budget <= 0 or len(members) == 10:
            break
    packed = " __attribute__((packed))" if rng.random() < 0.15 else ""
    name = f"struct s{number}"
    at, alignment = 0, 1
    for kind, _name, count in members:
        own = 1 if packed else MEMBERS[kind]
        at = -(-at // own) * own + MEMBERS[kind] * max(count, 1)
        alignment = max(alignment, own)
    size = -(-at // alignment) * alignment
    return (Parameter(name, size, tuple(members), bool(packed)),
            f"struct{packed} s{number} {{ {' '.join(text)} }};")


def generate(seed: int, count: int) -> tuple[str, list[GeneratedCall]]:
    """Return the C source of a module and the calls in it."""
    rng = random.Random(seed)
    lines = ["enum kind { FIRST = 1, LATER = 1 << 20 };",
             f"unsigned char seen[{SEEN}];",
             "static __attribute__((noinline)) void keep(int at, const void *from, int size) {",
             "    for (int i = 0; i < size; i++)",
             "        seen[at + i] = ((const unsigned char *)from)[i];",
             '    __asm__ volatile("" ::: "memory"); }',
             "static void fill(void *to, int size, unsigned long with) {",
             "    for (int i = 0; i < size; i++) {",
             "        with = with * 6364136223846793005UL + 1442695040888963407UL;",
             "        ((unsigned char *)to)[i] = with >> 56; } }"]
    calls = []
    for number in range(count):
        parameters = []
        for _ in range(rng.randrange(1, MOST + 1)):
            if rng.random() < 0.35:
                parameter, text = _structure(rng, len(lines))
                lines.append(text)
            else:
                kind = rng.choice(list(SCALARS))
                parameter = Parameter(kind, SCALARS[kind])
            parameters.append(parameter)
        call = GeneratedCall(number, parameters, rng.random() < 0.125)
        if rng.random() < 1 / 3:
            parameter, text = _structure(rng, len(lines))
            lines.append(text)
            call.result = parameter.type
        if call.variadic:
            call.more = [rng.getrandbits(31) for _ in range(rng.randrange(1, 7))]
        calls.append(call)
        lines += _function(call, rng)
    return "\n".join(lines) + "\n", calls


def _function(call: GeneratedCall, rng: random.Random) -> list[str]:
    declared = ", ".join(f"{p.type} p{n}" for n, p in enumerate(call.parameters))
    body = [f"    keep({at}, &p{n}, sizeof(p{n}));"
            for n, at in enumerate(call.offsets())]
    setup, passed = [], []
    for n, parameter in enumerate(call.parameters):
        setup += [f"    {parameter.type} v{n};",
                 f"    fill(&v{n}, sizeof(v{n}), {rng.getrandbits(63)}UL);"]
        if parameter.type == "_Bool":
            setup[-1] = f"    v{n} = {rng.randrange(2)};"
        passed.append(f"v{n}")
    passed += [f"{value}L" for value in call.more]
    rest = ", ..." if call.variadic else ""
    if call.result != "void":
        body += [f"    {call.result} r;", "    fill(&r, sizeof(r), 1);", "    return r;"]
    return [f"__attribute__((noinline)) {call.result} {call.name}({declared}{rest}) {{", *body,
            "}",
            f"void drive{call.number}(void) {{", *setup,
            f"    {call.name}({', '.join(passed)});", "}"]


def build(folder: Path, arch: str, seed: int, count: int) -> tuple[Path, list[GeneratedCall]]:
    """Compile a module with random calls, in the format that the architecture's kernels load."""
    source, calls = generate(seed, count)
    path = folder / f"calls_{arch}_{seed}.c"
    path.write_text(source)
    compiled, module = path.with_suffix(".o"), path.with_suffix(".ko")
    subprocess.run(
        [tool("clang"), f"--target={TRIPLES[arch]}", *KERNEL_FLAGS[arch], "-O2", "-gdwarf-4",
         "-ffreestanding", "-fno-omit-frame-pointer", "-fno-strict-aliasing", "-w", "-c",
         str(path), "-o", str(compiled)], check=True)
    linker = shutil.which(tool("ld.lld"))
    assert linker is not None
    subprocess.run([linker, "-r" if arch == "amd64" else "-shared", "-o", str(module),
                    str(compiled)], check=True)
    return module, calls
