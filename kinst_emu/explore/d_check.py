"""D expressions over kernel variables that must hold after all runs."""
from dtrace.calls.prototypes import Prototypes
from dtrace.d.language.options import Options
from dtrace.pipeline import Pipeline, linked
from dtrace.run.structured import Row
from dtrace.run.target import new_target
from dtrace.stacks.user_programs import UserPrograms
from emu.elf.image import Image
from emu.host.errors import KinstError
from emu.unicorn.machine import UnicornMachine
from kinst.probes.breakpoints import Breakpoints

VARIABLE = "`"  # D's prefix for kernel variables, which no function call contains


def is_d(text: str) -> bool:
    """Return whether a check is a D expression rather than a function call."""
    return VARIABLE in text


class DCheck:
    """A D expression that is evaluated in the machine's current state.

    :param text: the expression.
    :raises KinstError: the expression does not compile.
    """

    def __init__(self, machine: UnicornMachine, image: Image, text: str) -> None:
        self._machine, self._text = machine, text
        self._types = Prototypes(image).types()
        self.wrong()

    def wrong(self) -> str | None:
        """Return why the expression does not hold in the machine's state, or None if it holds."""
        errors: list[str] = []
        results: list[int] = []

        def handle_row(row: Row) -> None:
            actions = row.get("actions")
            if isinstance(actions, list):
                values = [one.get("value") for one in actions if isinstance(one, dict)]
                results.extend(value for value in values if isinstance(value, int))
            elif "error" in row:
                errors.append(str(row["error"]))

        options = Options()
        options.set("quiet", None)
        target = new_target(Breakpoints(self._machine), self._types, False, UserPrograms(),
                            lambda: "", stops=False)
        session = linked(Pipeline(options, target, errors.append),
                         f"BEGIN {{ trace(({self._text}) ? 1 : 0); }}", ["check"], handle_row)
        session.begin()
        session.look()
        session.end()
        if not results:
            raise KinstError(f"--check: {self._text}: " + ("; ".join(errors) or "it has no value"))
        return None if results[0] else f"{self._text} does not hold"
