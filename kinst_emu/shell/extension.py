"""IPython extension that provides a session: names, magics, completion and one-line errors."""

from typing import Any

from IPython.core.completer import SimpleCompletion, context_matcher
from IPython.core.interactiveshell import InteractiveShell

import kinst_emu
from emu.host.errors import KinstError
from kinst_emu.shell.completion import KernelCompletion
from kinst_emu.shell.lesson import Lesson
from kinst_emu.shell.magics import KernelMagics
from kinst_emu.shell.session import Session
from kinst_emu.shell.walking import Walking

MATCHER = "kinst_emu"


def load(ipython: InteractiveShell) -> Session:
    """Add a session to a running IPython, as ``%load_ext kinst_emu`` does."""
    session = Session(ipython.user_ns)
    ipython.user_ns.update({"kinst_emu": kinst_emu, **session.verbs(),
                            **Walking(session).verbs()})
    ipython.register_magics(KernelMagics(ipython, session))
    ipython.set_custom_exc((KinstError,), _one_line)  # type: ignore[no-untyped-call]
    unload(ipython)
    completion = KernelCompletion(ipython.user_ns)

    @context_matcher(identifier=MATCHER, priority=100)  # type: ignore[untyped-decorator]
    def kernel_matcher(context: Any) -> dict[str, object]:
        line = context.text_until_cursor
        if not line:
            line = context.full_text[: context.cursor_position]
        found = completion.complete(line)
        if found is None:
            return {"completions": []}
        return {"completions": [SimpleCompletion(text=text) for text in found.found],
                "matched_fragment": found.fragment, "suppress": True}

    ipython.Completer.custom_matchers.append(kernel_matcher)
    return session


def unload(ipython: InteractiveShell) -> None:
    """Stop completing names of the kernel, as ``%unload_ext kinst_emu`` does."""
    ipython.Completer.custom_matchers[:] = [
        matcher for matcher in ipython.Completer.custom_matchers
        if getattr(matcher, "matcher_identifier", "") != MATCHER]


def teach(ipython: Any, session: Session) -> None:
    """Start the lesson, and check its current task after each line that is executed."""
    lesson = Lesson(session, ipython.user_ns)
    ipython.events.register("post_run_cell", lambda result: lesson.look(result.result))
    lesson.task()


def _one_line(shell: InteractiveShell, _kind: type[BaseException], error: BaseException,
              _trace: Any, tb_offset: int | None = None) -> list[str]:
    """Show an error as one line, as the kinst commands do."""
    line = f"{type(error).__name__}: {error}"
    shell._showtraceback(type(error), error, [line])
    return [line]
