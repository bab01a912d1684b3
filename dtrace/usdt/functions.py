"""Names of the functions that programs call for their probes.

A hyphen in the name of a probe is written ``__``.
"""

FIRES, ASKS = "__dtrace_", "__dtraceenabled_"
BETWEEN = "___"  # between the names of the provider and the probe


def symbol(kind: str, provider: str, probe: str) -> str:
    """Return the name of a function.

    :param kind: ``FIRES`` or ``ASKS``.
    """
    return f"{kind}{provider}{BETWEEN}{probe.replace('-', '__')}"


def parse_symbol(name: str) -> tuple[str, str, str] | None:
    """Return the kind, provider and probe of a function, or None if it belongs to no probe."""
    for kind in (FIRES, ASKS):
        provider, between, probe = name.removeprefix(kind).partition(BETWEEN)
        if name.startswith(kind) and provider and between and probe:
            return kind, provider, probe.replace("__", "-")
    return None
