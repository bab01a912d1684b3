"""Files that are added to: what cannot be written says which file it was."""

import io


class _NamedFile(io.FileIO):
    """An error of a file that is open has no name of its own."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            error.filename = self.name
            raise


def appending(name: str, errors: str) -> io.TextIOWrapper:
    """A file of text (UTF-8) whose end is written to.

    :param errors: what becomes of what is no text, as ``open`` takes it.
    :raises OSError: here, when it cannot be opened; of its methods, with its name.
    """
    raw = _NamedFile(name, "ab")
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors=errors,
                            line_buffering=raw.isatty())
