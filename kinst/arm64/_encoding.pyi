from collections.abc import Iterable

SPLIT: object

def know(table: Iterable[tuple[int, int, bool]]) -> None: ...
