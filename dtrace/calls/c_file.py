"""C source files as workloads."""

import shlex


def c_file_words(workload: str) -> list[str]:
    """Return the words of a workload that names a C file and its arguments, or an empty list."""
    try:
        words = shlex.split(workload)
    except ValueError:  # an injected call, whose quotes need not follow the shell's rules
        return []
    return words if words and words[0].endswith(".c") else []
