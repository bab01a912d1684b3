"""Creation of explanations of the kernel's own tracer: boot, trace, record, and describe."""

import re
from dataclasses import dataclass

from dtrace.debug.kernel_types import kernel_types
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.guest.tracer import TracerCode
from emu.guests.registry import guest_of
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from emu.machine.machine import StopReason
from images.boots import booted
from images.guest_tracer import GuestTracer, TracerError, said
from images.shell import CommandError, run_command
from kinst_emu.explain.record.chosen import chosen
from kinst_emu.explain.record.recorder import FiringRecorder
from kinst_emu.explain.record.running import RunningThread
from kinst_emu.explain.record.seen_tracing import SeenTracing
from kinst_emu.explain.record.tracer_firing import TracingRecorder
from kinst_emu.explain.steps.explained import Asked, Explained, ExplainedWay, words_of
from kinst_emu.explain.steps.firing_steps import steps
from kinst_emu.explain.steps.tracing_steps import tracing_steps
from kinst_emu.explain.steps.tracing_way import tracing_way

TARGET = "$target"
PLAIN = re.compile(r"[\w ./:,+@%-]+")  # command that a shell would pass on unchanged
PLACE = re.compile(r"(?P<function>[^:\s]+):(?P<name>[^:\s]+)")
FORMS = "FUNCTION:OFFSET, FUNCTION:entry, FUNCTION:return or PROVIDER:MODULE:FUNCTION:NAME"


@dataclass(frozen=True)
class ExplainedTracing(ExplainedWay):
    """An explained firing of the kernel's own tracer."""

    seen: SeenTracing


def tracer_of(image: Image) -> TracerCode:
    """Return the description of a kernel's own tracer.

    :raises KinstError: if none is known.
    """
    tracer = guest_of(image, arch_of(image).name).probes.tracer
    if tracer is None:
        raise KinstError(f"{image.path}: this kernel's own tracer is not known; --real needs a "
                         "FreeBSD kernel")
    return tracer


def modules_of(image: Image) -> list[str]:
    """Return the files of the tracer's modules that are next to a kernel.

    :raises KinstError: if there are none.
    """
    tracer = tracer_of(image)
    found = [name for name in tracer.modules if image.path.with_name(name).is_file()]
    if not found:
        raise KinstError(f"{image.path}: the tracer's modules ({', '.join(tracer.modules)}) are "
                         "not next to it")
    return found


def probe_of(place: str, tracer: TracerCode) -> str:
    """Return the probe description for a place.

    :raises KinstError: if the place has no known form.
    """
    if place.count(":") == 3:
        return place
    match = PLACE.fullmatch(place)
    if match is None:
        raise KinstError(f"{place}: not a place; give {FORMS}")
    ends = match["name"] in ("entry", "return")
    return f"{tracer.functions if ends else tracer.provider}::{match['function']}:{match['name']}"


def explain_tracing(image: Image, place: str, clause: str, command: str, hit: int, limit: int,
                    memory: int) -> ExplainedTracing:
    """Explain a firing of the kernel's own tracer.

    :param image: with the modules of ``modules_of`` and a base system.
    :param place: see ``FORMS``.
    :param clause: D clause for the probe; empty: one without actions, which records that the probe
        has fired.
    :raises KinstError: if the probe does not exist or does not fire so often.
    """
    tracer = tracer_of(image)
    program = f"{probe_of(place, tracer)}\n{clause or '{ }'}"
    traced = GuestTracer(image, memory)
    machine, typed = traced.machine, command
    with PROGRESS.working(f"tracing {place}"):
        if TARGET in place or TARGET in clause:
            if not PLAIN.fullmatch(command):
                raise KinstError(f"-c '$ {command[:60]}': with $target, dtrace(1) itself starts "
                                 "the command, without a shell: give a program and its arguments, "
                                 "without quotation marks and characters such as | ; > * $")
            traced.keep(program)
            typed = traced.with_target(command)
        else:
            traced.trace(program)
    running = RunningThread(machine)
    with PROGRESS.working(f"running {command}"):
        start = machine.mark()
        try:
            seen = TracingRecorder(machine, tracer, typed, command, hit, limit, running).record()
        except CommandError as error:
            ended = error.stop is not None and error.stop.reason is StopReason.CONSOLE
            if typed == command or not ended:
                raise
            machine.back_to(start)
            ran = run_command(machine, typed, limit)
            if ran.status:
                raise TracerError(said(ran.output)) from None
            raise
    words = words_of(image)
    explanation = tracing_steps(seen, tracer, words)
    return ExplainedTracing(image, f"{seen.name}, fired by {seen.process}", command,
                            tracing_way(seen, explanation, words), explanation, words, seen)


def explain_ours(image: Image, place: str, clause: str, command: str, limit: int, memory: int
                 ) -> Explained:
    """Explain the first firing of kinst-emu's own probe at a place while a command runs.

    :param image: as for ``explain_tracing``.
    :param place: ``FUNCTION:OFFSET``.
    :raises KinstError: if the place is not a single instruction, or is not executed.
    """
    match = PLACE.fullmatch(place)
    if match is None or not match["name"].isdecimal():
        raise KinstError(f"{place}: --beside needs a place of the form FUNCTION:OFFSET")
    machine = booted(image, memory)
    found = chosen(machine, image, place, 1, lambda: None)
    recorder = FiringRecorder(machine, found)
    if clause:
        recorder.clause(clause, kernel_types(image))
    with PROGRESS.working(f"running {command}"):
        firing = recorder.record(lambda: run_command(machine, command, limit))
    words, asked = words_of(image), Asked(place, f"$ {command}", clause=clause)
    return Explained(image, asked, firing, None, steps(firing, recorder.table, words), words,
                     recorder.table)
