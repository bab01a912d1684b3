"""The teaching kernel as a guest; it boots and handles traps like FreeBSD's kernel."""

from emu.guest.guest import Guest

PROMPTS = ("teaching> ",)
LESSON = "run_lesson"  # a function that only the teaching kernel has


def teaching(freebsd: Guest) -> Guest:
    """Derive the guest for the teaching kernel from the FreeBSD guest on its architecture."""
    assert freebsd.threads.start is not None
    # The functions that start threads exist only in the teaching kernel's variant with data races.
    start = freebsd.threads.start._replace(stands="", lock="", alone=True)
    return freebsd._replace(
        name="teaching kernel", recognized_by=LESSON,
        boot=freebsd.boot._replace(
            prompts=PROMPTS, shell_prompt="", starts=("machine_thread",), readers=("cngetc",),
            session=None, several_cpus=None),
        traps=freebsd.traps._replace(hooks=""),
        threads=freebsd.threads._replace(start=start, clock=None),
        probes=freebsd.probes._replace(tracer=None))
