"""A check in D: an expression of the kernel's variables that is to hold behind all runs."""


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

VARIABLE = "`"  # D's, before the name of a kernel's variable: no call has one


def is_d(text: str) -> bool:
    """Whether a check is an expression of D, and no call."""
    return VARIABLE in text


class DCheck:
    """:param text: the expression.
    :raises KinstError: here, when it does not compile.
    """

    def __init__(self, machine: UnicornMachine, image: Image, text: str) -> None:
        self._machine, self._text = machine, text
        self._types = Prototypes(image).types()
        self.wrong()

    def wrong(self) -> str | None:
        """What is wrong where the machine stands; None: it holds."""
        said: list[str] = []
        found: list[int] = []

        def took(row: Row) -> None:
            actions = row.get("actions")
            if isinstance(actions, list):
                values = [one.get("value") for one in actions if isinstance(one, dict)]
                found.extend(value for value in values if isinstance(value, int))
            elif "error" in row:
                said.append(str(row["error"]))

        options = Options()
        options.set("quiet", None)
        target = new_target(Breakpoints(self._machine), self._types, False, UserPrograms(),
                            lambda: "", stops=False)
        session = linked(Pipeline(options, target, said.append),
                         f"BEGIN {{ trace(({self._text}) ? 1 : 0); }}", ["check"], took)
        session.begin()
        session.look()
        session.end()
        if not found:
            raise KinstError(f"--check: {self._text}: " + ("; ".join(said) or "gives nothing"))
        return None if found[0] else f"{self._text} does not hold"
