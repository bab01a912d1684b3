"""Find the smallest part of a D program that still shows a difference."""

from collections.abc import Callable

from dtrace.judge.program import Node, smaller

MOST_TRIALS = 400  # maximum number of smaller programs that are tried


def shrunk(program: Node, differs: Callable[[Node], bool], most: int = MOST_TRIALS) -> Node:
    """Return a smallest variant of a program that differs, too.

    Each step keeps the first smaller variant that differs; no part of the result can be left out
    or made smaller, unless the number of trials was used up.

    :param differs: runs a program twice and returns whether the outcomes differ.
    :param most: maximum number of calls of ``differs``.
    """
    tried = {program.text}
    found = True
    while found:
        found = False
        for variant in smaller(program):
            if variant.text in tried:
                continue
            if len(tried) > most:
                return program
            tried.add(variant.text)
            if differs(variant):
                program, found = variant, True
                break
    return program
