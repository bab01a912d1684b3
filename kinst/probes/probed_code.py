"""Code that can be probed: the functions in memory, and the dispatcher of their probes."""


from emu.elf.symbols import Symbol
from emu.host.errors import KinstError, MemoryAccessError
from emu.machine.machine import Machine
from emu.unicorn.machine import UnicornMachine
from kinst.code.listing import ProbedInstruction, check_size, instructions
from kinst.probes.dispatcher import new_dispatcher
from kinst.relocation.trap import trap_of

LONGEST_CODE = 15  # maximum length of an instruction in bytes


class ProbeError(KinstError):
    """Error raised if probes cannot be created or enabled, or a description matches no probe.

    :param tag: the error tag of dtrace(1) if it is not D_PDESC_ZERO.
    """

    def __init__(self, text: str, tag: str = "") -> None:
        super().__init__(text)
        self.tag = tag


class ProbedCode:
    """The code of a machine, and the dispatcher of the probes in this code."""

    def __init__(self, machine: Machine) -> None:
        self.arch, self.image, self.machine = machine.arch, machine.image, machine
        self.trap = trap_of(machine.guest, machine.arch.name)
        engine = machine.engine if isinstance(machine, UnicornMachine) else None
        self.dispatcher, self.templates = new_dispatcher(
            machine.arch, self.trap, machine.guest.traps.trap_frame, engine)
        self.functions: list[Symbol] = []
        self._function_index: dict[tuple[str, int, str], int] = {}
        self._text: tuple[int, bytes] | None = None
        self.enabled = False

    def remove_all(self) -> None:
        """Forget all probes; they must not be enabled."""
        assert not self.enabled
        self.dispatcher.clear()
        self.functions.clear()
        self._function_index.clear()

    def code(self, function: Symbol) -> bytes:
        """Return a function's code in memory, without breakpoints.

        It may differ from the file: kernels patch their code at boot (ifuncs, CPU features).

        :raises ProbeError: when the function's pages are not mapped.
        :raises KinstError: when the function is too large to disassemble.
        """
        check_size(function)
        try:
            code = bytearray(self.machine.read(function.address, function.size))
        except MemoryAccessError as error:
            raise ProbeError(f"{function.name}: {error}") from None
        if self.enabled:
            for at in range(len(code)):
                original = self.dispatcher.displaced(function.address + at)
                if function.address + at in self.dispatcher:
                    code[at : at + len(original)] = original
        return bytes(code)

    def word(self, address: int) -> int:
        """Return a word of the kernel's memory, or 0 if it cannot be read."""
        try:
            return self.machine.read_u64(address)
        except MemoryAccessError:
            return 0

    def instructions(self, function: Symbol) -> list[ProbedInstruction]:
        """Return a function's instructions with their verdicts.

        :raises ProbeError: when the function's pages are not mapped.
        """
        return list(instructions(self.trap, self.code(function), function))

    def _function(self, function: Symbol) -> int:
        key = (function.name, function.address, function.module)
        index = self._function_index.get(key)
        if index is None:
            index = self._function_index[key] = len(self.functions)
            self.functions.append(function)
        return index

    def _added(self, number: int, address: int) -> int:
        if number < 0:
            raise ProbeError(
                f"{self.image.symbols.where(address)}: this instruction cannot be probed")
        return number

    def _code_at(self, address: int) -> bytes:
        """Return the bytes of an instruction and some bytes that follow it.

        :raises ProbeError: when the address is not mapped.
        """
        try:
            return self.machine.read(address, LONGEST_CODE)
        except MemoryAccessError as error:
            raise ProbeError(f"{self.image.symbols.where(address)}: {error}") from None

    def _around(self, function: Symbol) -> tuple[bytes, int]:
        """Return code that contains a function, and the function's offset in the code."""
        if self.enabled:
            return self.code(function), 0
        if self._text is not None:
            base, text = self._text
            if base <= function.address and function.address + function.size <= base + len(text):
                return text, function.address - base
        return self.code(function), 0

    def read_text(self) -> None:
        """Read all of the kernel's code before probing many functions; see ``forget_text``."""
        for segment in self.machine.image.segments:
            if segment.executable:
                size = min(segment.memory_size, len(segment.data))
                try:
                    self._text = segment.virtual, self.machine.read(segment.virtual, size)
                except MemoryAccessError:
                    continue  # not all code is mapped: read functions one by one
                return

    def forget_text(self) -> None:
        """Discard the code that ``read_text`` has read."""
        self._text = None
