"""Output of compiled programs for kdtrace: listings, rewritten text, code, stability."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dtrace.d.compile.listing import listing
from dtrace.d.compile.program import Compiled, ListedProbe, counted_once, split
from dtrace.d.language.lexer import between
from dtrace.pipeline import Pipeline
from dtrace.run.kernel_probes import KernelProbes
from emu.host.printable import counted
from kinst_emu.cli import probe_listing
from kinst_emu.cli.command_line import last_part
from kinst_emu.cli.say import say
from kinst_emu.terminal.json_lines import JsonLines


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled program from the command line.

    :param letter: letter of the program's option: P, m, f, n, i or s.
    :param text: value of the option, as given.
    :param source: D source that was compiled.
    """

    letter: str
    text: str
    source: str
    clauses: Sequence[Compiled]

    @property
    def shown(self) -> tuple[str, str]:
        """The program's kind ("script" or "description") and name, as printed in messages."""
        if self.letter == "s":
            return "script", self.text
        ends = [self.text.find(mark) for mark in "{/;" if mark in self.text]
        return "description", self.text[: min(ends)] if ends else self.text


def show_rewritten(pipeline: Pipeline, programs: Sequence[CompiledProgram], json: bool) -> None:
    """Print the programs for -d, with inline functions replaced by their inline copies."""
    probes = pipeline.probes
    rewritten = probes.rewritten if isinstance(probes, KernelProbes) else {}
    for program in programs:
        for compiled in program.clauses:
            clause, specifier = compiled.function.clause, compiled.function.specifier
            if clause.body is None and not clause.bare:
                # The compiler splits a clause with "if"; only the first part has the whole text.
                continue
            parts = split(specifier.text, last_part(program.letter))
            text = rewritten.get(parts) or [":".join(parts)]
            body = "{\n}" if clause.body is None else between(program.source, *clause.body)
            if json:
                JsonLines().row({"rewritten": text, "body": body})
            else:
                print(",\n".join(text) + f"\n{body}\n")


def show_code(programs: Sequence[CompiledProgram]) -> None:
    """Print the code of each clause on standard error, for -S."""
    for program in programs:
        for compiled in program.clauses:
            title = f"{compiled.function.name} ({compiled.function.specifier.text})"
            sys.stderr.write("".join(f"{row}\n" for row in listing(
                title, compiled.function.code, program.source.splitlines())))


def show_promises(pipeline: Pipeline, programs: Sequence[CompiledProgram]) -> None:
    """Print the stability of each program and clause, for -e -v."""
    for program in programs:
        print(probe_listing.stability(*program.shown, program.clauses), end="")
        probe_listing.show_clauses(program.clauses, _arguments(pipeline))


def say_matched(programs: Sequence[CompiledProgram], quiet: bool, verbose: bool) -> None:
    """Report how many probes each program matches.

    :param verbose: whether to print the stability report, too.
    """
    for program in programs:
        what, shown = program.shown
        # With the clauses that the compiler adds
        count = sum(counted_once(one.probes) for one in program.clauses)
        if not quiet:
            say(f"{what} '{shown}' matched {counted(count, 'probe')}")
        if verbose:
            print(probe_listing.stability(what, shown, program.clauses), flush=True)


def show_list(pipeline: Pipeline, programs: Sequence[CompiledProgram], json: bool, verbose: bool
              ) -> int:
    """Print the probes that the programs match, or all probes; return the exit status."""
    shown = [probes for probes in _listed(pipeline, programs) if probes]
    if not shown:
        return 1
    probe_listing.show(shown, json, _arguments(pipeline) if verbose else None)
    if verbose and isinstance(pipeline.probes, KernelProbes):
        probe_listing.show_left_out(pipeline.probes, shown, json)
    return 0


def _listed(pipeline: Pipeline, programs: Sequence[CompiledProgram]
            ) -> Iterator[Sequence[ListedProbe]]:
    """Yield the probes of each clause, or all probes."""
    if not programs:
        yield probe_listing.every_probe(pipeline.probes)
    for program in programs:
        for compiled in program.clauses:
            if not compiled.probes:
                parts = split(compiled.function.specifier.text, last_part(program.letter))
                say(f"failed to match {':'.join(parts)}: "
                    f"{compiled.why or 'No probe matches description'}")
            yield probe_listing.distinct(compiled.probes)


def _arguments(pipeline: Pipeline) -> probe_listing.ArgumentTypes:
    """Return a function that maps a probe to the types of its arguments."""
    surroundings = pipeline.surroundings
    return (lambda _probe: []) if surroundings is None else surroundings.listed
