RECORD_SIZE: int
RECORD_FORMAT: str
PIECE_FORMAT: str
UNIT_FORMAT: str
DECLARED_FORMAT: str

class ScanError(Exception): ...
class SplitError(ScanError): ...

class Scan:
    def __init__(
        self,
        info: bytes,
        abbrev: bytes,
        ranges: bytes,
        rnglists: bytes,
        addr: bytes,
        str_offsets: bytes,
        limit: int = ...,
    ) -> None: ...
    def tables(self) -> tuple[bytes, bytes, bytes, bytes]: ...
