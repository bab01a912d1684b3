"""C source files as workloads."""

import shlex


def c_file_words(workload: str) -> list[str]:
    """Return the words of a workload that names a C file and its arguments, or an empty list."""
    try:
        words = shlex.split(workload)
    except ValueError:  # not valid shell syntax, so the workload is an injected call
        return []
    return words if words and words[0].endswith(".c") else []
