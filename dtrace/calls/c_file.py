"""A workload that is a file of C."""

import shlex


def c_file_words(workload: str) -> list[str]:
    """The words of a workload that is a file of C with its arguments; none of others."""
    try:
        words = shlex.split(workload)
    except ValueError:  # a call has quotes of its own
        return []
    return words if words and words[0].endswith(".c") else []
