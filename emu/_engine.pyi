from collections.abc import Callable, Iterable, Sequence

STOP_NONE: int
STOP_DEADLINE: int
STOP_INTERRUPT: int
STOP_EXCEPTION: int
STOP_INVALID: int
STOP_LIMIT: int
STOP_UNCOUNTED: int
STOP_REQUEST: int
STOP_ERROR: int

class EngineError(Exception):
    code: int

class Engine:
    FUNCTIONS: tuple[str, ...]
    error: BaseException | None
    instructions: int
    skew: int
    deadline: int
    limit: int
    pending: bool
    frozen: bool
    resumed: bool
    shadow: bool
    def __init__(
        self, handle: int, symbols: dict[str, int], pc_register: int, fixed: int
    ) -> None: ...
    def map_ram(self, address: int, size: int, host: int, perms: int = 7) -> None: ...
    def map_device(
        self,
        address: int,
        size: int,
        read: Callable[[int, int], int],
        write: Callable[[int, int, int], None],
    ) -> None: ...
    def hook_ports(
        self,
        insn_in: int,
        insn_out: int,
        port_in: Callable[[int, int], int],
        port_out: Callable[[int, int, int], None],
    ) -> None: ...
    def hook_tsc(
        self,
        rdtsc: int,
        rdtscp: int,
        low: int,
        high: int,
        aux: int,
        cost: int,
        numerator: int,
        denominator: int,
    ) -> None: ...
    def hook_system(
        self,
        mrs: int,
        msr: int,
        counters: Iterable[int],
        known: Iterable[int],
        read: Callable[[int], int | None],
        write: Callable[[int, int], bool],
        cost: int,
        numerator: int,
        denominator: int,
    ) -> None: ...
    def set_interrupt_mask(self, register: int, bits: int, value: int) -> None: ...
    def set_interrupt_gate(self, register: int, bits: int) -> None: ...
    def read(self, register: int) -> int: ...
    def write(self, register: int, value: int) -> None: ...
    def read_bytes(self, register: int, size: int) -> bytes: ...
    def write_bytes(self, register: int, value: bytes) -> None: ...
    def read_system(
        self, register: int, op0: int, op1: int, crn: int, crm: int, op2: int
    ) -> int: ...
    def write_system(
        self, register: int, op0: int, op1: int, crn: int, crm: int, op2: int, value: int
    ) -> None: ...
    def read_msr(self, register: int, number: int) -> int: ...
    def write_msr(self, register: int, number: int, value: int) -> None: ...
    def run(self, pc: int) -> tuple[int, int]: ...
    def settle(self, count: int | None = None) -> None: ...
    def synchronize(self) -> None: ...
    def learn(self, address: int, size: int, count: int) -> None: ...
    def forget(self) -> None: ...
    def set_exits(self, addresses: Sequence[int]) -> None: ...
    def remove_translations(self, begin: int, end: int) -> None: ...
    def flush_translations(self) -> None: ...
    def flush_tlb(self) -> None: ...
    @property
    def now(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def previous_end(self) -> int: ...
    @property
    def block(self) -> tuple[int, int, int]: ...
    @property
    def unknown_block(self) -> tuple[int, int]: ...
