from collections.abc import Collection

def rows(
    raw: bytes, strings: int, kinds: Collection[int], sized: bool
) -> list[tuple[int, int, int, int]]: ...
