class EntryError(ValueError): ...

class Entry:
    unit: int
    end: int
    offset: int
    tag: int
    has_children: bool
    attributes: dict[int, int | bytes | None]

class EntryReader:
    def __init__(self, info: bytes | memoryview, abbrev: bytes | memoryview,
                 strings: bytes | memoryview, line_strings: bytes | memoryview,
                 str_offsets: bytes | memoryview) -> None: ...
    def entry(self, unit: int, offset: int) -> Entry: ...
    def children(self, entry: Entry, *tags: int) -> list[Entry]: ...
