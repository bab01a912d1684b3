"""Parser for workloads that are C source files with arguments."""

import shlex


def c_file_words(workload: str) -> list[str]:
    """Split a workload into a C file and its arguments; return [] for any other workload."""
    try:
        words = shlex.split(workload)
    except ValueError:  # the workload is not valid shell syntax, so it is an injected call
        return []
    return words if words and words[0].endswith(".c") else []
