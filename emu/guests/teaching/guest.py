"""The teaching kernel as a guest: it traps as FreeBSD's kernel does, and is entered likewise."""

from dataclasses import replace

from emu.guest.guest import Guest

PROMPTS = ("teaching> ",)
LESSON = "run_lesson"  # a function of its own


def teaching(freebsd: Guest) -> Guest:
    """The teaching kernel, on the architecture of a FreeBSD kernel."""
    assert freebsd.threads.start is not None
    # Of the kernel with races in it: the plain one has no such functions.
    start = replace(freebsd.threads.start, stands="", lock="", alone=True)
    return replace(
        freebsd, name="teaching kernel", recognized_by=LESSON,
        boot=replace(freebsd.boot, prompts=PROMPTS, shell_prompt="", starts=("machine_thread",),
                     readers=("cngetc",)),
        threads=replace(freebsd.threads, start=start, clock=None))
