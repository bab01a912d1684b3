"""The teaching kernel as a guest; it boots and handles traps like FreeBSD's kernel."""

from dataclasses import replace

from emu.guest.guest import Guest

PROMPTS = ("teaching> ",)
LESSON = "run_lesson"  # a function that only the teaching kernel has


def teaching(freebsd: Guest) -> Guest:
    """Derive the guest for the teaching kernel from the FreeBSD guest on its architecture."""
    assert freebsd.threads.start is not None
    # The functions that start threads exist only in the teaching kernel's variant with data races.
    start = replace(freebsd.threads.start, stands="", lock="", alone=True)
    return replace(
        freebsd, name="teaching kernel", recognized_by=LESSON,
        boot=replace(freebsd.boot, prompts=PROMPTS, shell_prompt="", starts=("machine_thread",),
                     readers=("cngetc",), session=None, several_cpus=None),
        traps=replace(freebsd.traps, hooks=""),
        threads=replace(freebsd.threads, start=start, clock=None))
