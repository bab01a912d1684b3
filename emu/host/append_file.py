"""Append-only text files whose write errors name the file."""

import io


class _NamedFile(io.FileIO):
    """Raw file whose write errors contain its name."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            error.filename = self.name
            raise


def appending(name: str, errors: str) -> io.TextIOWrapper:
    """Open a UTF-8 text file for appending.

    :param errors: handling of characters that cannot be encoded, as for ``open``.
    :raises OSError: if the file cannot be opened or, in its methods, written; with its name.
    """
    raw = _NamedFile(name, "ab")
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors=errors,
                            line_buffering=raw.isatty())
