"""Header files for programs that declare probes: ``kdtrace -h``.

For each probe, a header has a macro that fires it and one that asks whether it is enabled.  Both
call a function that no program defines, and ``kdtrace -G`` replaces the calls.
"""

from collections.abc import Iterable, Iterator

from dtrace.d.language.syntax import ProbeDeclaration, ProviderDeclaration
from dtrace.usdt.functions import ASKS, FIRES, symbol
from dwarf.types import declare

# A function that asks for a probe gets 0: on some architectures, this is what remains in the
# register of its result when the call is replaced by an instruction that does nothing.
ASKED = "0"


def header(providers: Iterable[ProviderDeclaration], file: str = "") -> str:
    """Return the text of a header for the probes of providers.

    :param file: name of the header file, for its guard; empty: the header has no guard.
    """
    guard = "_" + "".join(c.upper() if c.isalnum() else "_" for c in file)
    lines = [f"#ifndef {guard}", f"#define {guard}", ""] if file else []
    lines += ["#include <sys/sdt.h>", "#include <unistd.h>", "", "#ifdef __cplusplus",
              'extern "C" {', "#endif", ""]
    for provider in providers:
        lines += ["#if _DTRACE_VERSION", ""]
        for probe in provider.probes:
            lines += _functions(provider, probe)
        lines.append("")
        for probe in provider.probes:
            lines += _macros(provider, probe)
        lines += ["", "#else", ""]
        for probe in provider.probes:
            lines += _nothing(provider, probe)
        lines += ["", "#endif", ""]
    lines += ["#ifdef __cplusplus", "}", "#endif"]
    lines += ["", f"#endif /* {guard} */"] if file else []
    return "".join(f"{line}\n" for line in lines)


def _macro(provider: ProviderDeclaration, probe: ProbeDeclaration) -> str:
    return f"{provider.name}_{probe.name}".upper().replace("-", "_")


def _arguments(probe: ProbeDeclaration) -> str:
    return ", ".join(f"arg{number}" for number in range(len(probe.native)))


def _functions(provider: ProviderDeclaration, probe: ProbeDeclaration) -> Iterator[str]:
    types = ", ".join(declare(kind) for kind in probe.native) or "void"
    yield f"extern void {symbol(FIRES, provider.name, probe.name)}({types});"
    yield f"extern int {symbol(ASKS, provider.name, probe.name)}(long);"


def _macros(provider: ProviderDeclaration, probe: ProbeDeclaration) -> Iterator[str]:
    given = _arguments(probe)
    yield f"#define {_macro(provider, probe)}({given}) \\"
    yield f"\t{symbol(FIRES, provider.name, probe.name)}({given})"
    yield f"#define {_macro(provider, probe)}_ENABLED() \\"
    yield f"\t{symbol(ASKS, provider.name, probe.name)}({ASKED})"


def _nothing(provider: ProviderDeclaration, probe: ProbeDeclaration) -> Iterator[str]:
    yield f"#define {_macro(provider, probe)}({_arguments(probe)})"
    yield f"#define {_macro(provider, probe)}_ENABLED() (0)"
