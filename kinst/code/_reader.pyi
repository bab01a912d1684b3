from collections.abc import Callable

from kinst.relocation.shape import Shape

class CodeReader:
    literal: Callable[[bytes, int], tuple[int, int] | None]
    def __init__(
        self, shape: Shape, classify: Callable[[bytes, int, int], tuple[int, int]]
    ) -> None: ...
    def add_template(
        self,
        op: int,
        a: int,
        b: int,
        c: int,
        n: int,
        relative: int,
        flags: int,
        truth: int,
        target: int,
        extra: int,
        code: bytes,
        has_data: bool,
    ) -> int: ...
    def boundaries(
        self, address: int, code: bytes, start: int, size: int
    ) -> tuple[int, list[int], bool, list[int]]: ...
    def tally(
        self, address: int, code: bytes | memoryview, start: int, size: int,
        encodings: dict[bytes, tuple[int, int]], place: int, counts: list[int],
    ) -> tuple[int, int, int]: ...
    def key(self, code: bytes) -> tuple[int, bytes, int]: ...
    def step(
        self, code: bytes, address: int
    ) -> tuple[int, int, int, int, int, int, bool, bool]: ...
    def lengths(self, code: bytes) -> list[int]: ...
