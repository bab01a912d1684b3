"""The ``kdtrace`` command: dtrace(1)'s face on the emulated kernel."""

import argparse
import sys

from dtrace.calls import Evaluation, check, parse
from dtrace.kinst_command import describe, show_console
from dtrace.terminal import parse_count, parse_size, run_command, working
from dtrace.workload import booted
from emu.call import DEFAULT_LIMIT, Caller, CallError
from emu.errors import KinstError
from images import catalog
from kinst import fbt, provider
from kinst.breakpoints import Breakpoints, Probe, ProbeError
from kinst.trap import FrameState

PROVIDERS = {provider.PROVIDER: provider.create, fbt.PROVIDER: fbt.create}


def main() -> None:
    run_command("dtrace", _main)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kdtrace", description="Traces the instructions of a kernel that runs inside Python."
    )
    parser.add_argument("-k", dest="kernel", required=True, metavar="IMAGE",
                        help="a kernel file, or a name from 'kinst images'")
    parser.add_argument("-n", dest="names", action="append", default=[], metavar="PROBE",
                        help="kinst::FUNCTION:OFFSET, kinst::FUNCTION: for every instruction, or "
                        "fbt::FUNCTION:entry and :return; may be repeated")
    parser.add_argument("-c", dest="call", metavar="CALL",
                        help="what to run: a call, e.g. 'strlen(\"hello\")'")
    parser.add_argument("-l", dest="listing", action="store_true", help="list probes, do not run")
    parser.add_argument("-q", dest="quiet", action="store_true", help="only what actions print")
    parser.add_argument("--memory", default="512M", metavar="SIZE", help="guest RAM (%(default)s)")
    parser.add_argument("--limit", default=str(DEFAULT_LIMIT), metavar="N",
                        help="instructions after which the call is given up (%(default)s)")
    return parser


def _main() -> int:
    arguments = _parser().parse_args()
    if not arguments.names:
        raise KinstError("no probes specified; give one, like: -n 'kinst::strlen:'")
    limit = parse_count(arguments.limit, "--limit")
    descriptions = [(text, *split_description(text)) for text in arguments.names]
    image = catalog.find(arguments.kernel)
    program = None
    if not arguments.listing:
        if arguments.call is None:
            raise KinstError("nothing to run; give a call, like: -c 'strlen(\"hello\")'")
        program = parse(arguments.call)
        check(image, program)
    memory = parse_size(arguments.memory)
    with working(f"booting {image.path} (the next time it comes from the cache)"):
        machine = booted(image, memory)
    machine.console.text.clear()
    breakpoints = Breakpoints(machine)
    for text, chosen, function, name in descriptions:
        try:
            count = len(PROVIDERS[chosen](breakpoints, function, name))
        except ProbeError as error:
            raise KinstError(f"invalid probe specifier {error}") from None
        if not arguments.quiet and not arguments.listing:
            plural = "" if count == 1 else "s"
            print(f"dtrace: description '{text}' matched {count} probe{plural}", file=sys.stderr)
    if program is None:
        print(f"{'ID':>5} {'PROVIDER':>10} {'MODULE':>17} {'FUNCTION':>33} NAME")
        for probe in breakpoints.probes:
            print(f"{probe.id:>5} {probe.provider:>10} {'kernel':>17} {probe.function:>33} "
                  f"{probe.name}")
        return 0
    if not arguments.quiet:
        print(f"{'CPU':>3} {'ID':>6} {'FUNCTION:NAME':>32}")
        breakpoints.fire = _print_row
    breakpoints.enable()
    evaluation = Evaluation(Caller(machine, limit))
    try:
        value = evaluation.run(program)
    except CallError as error:
        show_console(error.console)
        raise
    finally:
        breakpoints.disable()
    show_console(bytes(machine.console.text))
    print(f"{arguments.call} = {describe(value)}")
    return 0


def _print_row(probe: Probe, state: FrameState) -> None:
    print(f"{0:>3} {probe.id:>6} {f'{probe.function}:{probe.name}':>32} ")


def split_description(text: str) -> tuple[str, str, str]:
    """The provider, the function and the name of a probe description.

    :raises KinstError: when it is not one.
    """
    if "{" in text or "/" in text:
        raise KinstError(
            f"invalid probe specifier {text}: predicates and actions are not supported yet; give "
            "the probe alone"
        )
    fields = text.strip().split(":")
    if len(fields) != 4 or fields[0] not in PROVIDERS:
        raise KinstError(
            f"invalid probe specifier {text}: give kinst::FUNCTION:OFFSET, kinst::FUNCTION:, or "
            "fbt::FUNCTION:entry or return"
        )
    chosen, module, function, name = fields
    if module not in ("", "kernel"):
        raise KinstError(f"invalid probe specifier {text}: there is no module '{module}'")
    if not function:
        raise KinstError(f"invalid probe specifier {text}: it needs a function's name")
    return chosen, function, name


if __name__ == "__main__":
    main()
