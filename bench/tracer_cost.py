"""Instructions that FreeBSD's own DTrace executes in a firing, by part (docs/cost.md).

    python bench/tracer_cost.py 15.0-RELEASE/amd64 [probes | actions]

Each row is one firing, as ``kinst explain --real`` records it; the numbers are exact and
repeatable.
"""

import argparse
import re
import sys
from collections.abc import Iterator

from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.guest.tracer import TracerPart
from emu.host.errors import KinstError
from images import catalog
from images.systems import with_disks
from kinst_emu.explain.steps.explained_tracing import explain_tracing, modules_of

MEMORY = 512 << 20
LIMIT = 20_000_000_000
COMMAND = "ls /"
FUNCTION = "malloc"
# Name of a kind of instruction -> pattern of its text, on any architecture
INSTRUCTIONS = {
    "a push or store": r"(push|mov|stp|str|sd|c\.sd|c\.sdsp)\b.*",
    "a direct call": r"(call 0x|bl #|jalr ra, |jal ra, |auipc ra).*",
    "a conditional branch": r"(j[^m]\w* 0x|b\.\w+ |[ct]bn?z |b(eq|ne|lt|ge)\w* |c\.b\w+ ).*",
    "relative to the pc": r"(.*\[rip|adrp? |auipc (?!ra)).*"}
PROBES = (
    ("fbt, entry", f"fbt::{FUNCTION}:entry"), ("fbt, return", f"fbt::{FUNCTION}:return"),
    ("syscall, entry", "syscall::open:entry"), ("syscall, return", "syscall::open:return"),
    ("vfs (SDT)", "vfs:namecache:lookup:hit"), ("sched (SDT)", "sched:::on-cpu"),
    ("dtmalloc", "dtmalloc:::malloc"), ("profile", "profile:::profile-4999"),
    ("pid, entry", "pid$target:libc.so.7:malloc:entry"),
    ("pid, return", "pid$target:libc.so.7:malloc:return"),
    ("pid, offset", "pid$target:libc.so.7:malloc:{}"))
ACTIONS = (
    "", "/1/ { }", "/pid == 1/ { }", "/pid > 1/ { }", "/execname == \"sh\"/ { }", "{ trace(1); }",
    "{ trace(pid); }", "{ trace(arg0); }", "{ trace(execname); }", "{ trace(timestamp); }",
    "{ trace(curthread->td_tid); }", "{ trace(curthread->td_proc->p_comm); }", "{ x = 1; }",
    "{ this->x = 1; }", "{ self->x = 1; }", "{ x[1] = 1; }", "{ @ = count(); }",
    "{ @[pid] = count(); }", "{ @[execname] = count(); }", "{ @ = sum(1); }", "{ @ = avg(1); }",
    "{ @ = min(1); }", "{ @ = max(1); }", "{ @ = stddev(1); }", "{ @ = quantize(1); }",
    "{ @ = lquantize(1, 0, 10, 1); }", "{ @ = llquantize(1, 10, 0, 3, 10); }", "{ stack(); }",
    "{ stack(1); }", "{ ustack(); }", "{ ustack(1); }", "{ printf(\"%d\", pid); }",
    "{ printf(\"%s\", execname); }", "{ tracemem(curthread, 16); }",
    "{ x = strlen(execname); }", "{ x = strjoin(execname, \"a\") == \"b\"; }",
    "{ x = speculation(); }", "{ speculate(speculation()); trace(1); }",
    "{ x = rand(); }", "{ if (pid > 1) { trace(1); } }")
TABLES = ["probes", "actions"]
PARTS = tuple(part for part in TracerPart if part is not TracerPart.CODE)


def places(image: Image) -> Iterator[tuple[str, str]]:
    """Yield (kind of instruction, probe) for instructions of a function."""
    arch, function = arch_of(image), image.symbols.find(FUNCTION)
    assert function is not None
    code, at, wanted = image.virtual_to_file(function.address, function.size), 0, dict(INSTRUCTIONS)
    while at < len(code):
        length = arch.instruction_length(code[at:]) or 1
        text = arch.disassemble(code[at : at + length], function.address + at)
        kind = next((kind for kind, form in wanted.items() if re.fullmatch(form, text)), None)
        if kind is not None and at:
            del wanted[kind]
            yield f"kinst, {kind}: `{text}`", f"kinst::{FUNCTION}:{at}"
        at += length


def row(image: Image, name: str, probe: str, clause: str) -> str:
    """Record the second firing in the command's processes, and return a row of a table."""
    try:
        seen = explain_tracing(image, probe, clause, COMMAND, 2, LIMIT, MEMORY).seen
    except KinstError as error:
        return f"| {name} | {error} |"
    counts = [seen.count(part) for part in PARTS]
    return f"| {name} | " + " | ".join(map(str, (*counts, sum(counts)))) + " |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kernel")
    parser.add_argument("table", nargs="?", choices=TABLES)
    arguments = parser.parse_args()
    kernel = catalog.find(arguments.kernel)
    image = with_disks(catalog.find(arguments.kernel, modules_of(kernel)), [], base=True)
    heads = " | ".join((*(part.value for part in PARTS), "total"))
    for table in [arguments.table] if arguments.table else TABLES:
        print(f"\n| {table[:-1]} | {heads} |\n|{'---|' * (len(PARTS) + 2)}", flush=True)
        rows = ([(*one, "") for one in (*places(kernel), *PROBES)] if table == "probes"
                else [(f"`{clause or '(none)'}`", f"fbt::{FUNCTION}:entry", clause)
                      for clause in ACTIONS])
        for name, probe, clause in rows:
            print(row(image, name, probe.replace("{}", "4"), clause), flush=True)


if __name__ == "__main__":
    sys.exit(main())
