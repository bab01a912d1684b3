"""Stability attributes and versions of D, as pragmas and options have them (DTrace guide,
"Stability")."""

import re

from emu.errors import KinstError

VERSIONS = ("1.0", "1.1", "1.2", "1.2.1", "1.2.2", "1.3", "1.4", "1.4.1", "1.5", "1.6", "1.6.1",
            "1.6.2", "1.6.3", "1.7", "1.7.1", "1.8", "1.8.1", "1.9", "1.9.1", "1.10", "1.11",
            "1.12", "1.12.1", "1.13")
VERSION = VERSIONS[-1]


class AttributeValueError(KinstError):
    """What is no attribute, or no version."""


STABILITIES = ("internal", "private", "obsolete", "external", "unstable", "evolving", "stable",
               "standard")
CLASSES = ("unknown", "cpu", "platform", "group", "isa", "common")


def parse_attributes(value: str) -> str:
    parts = value.split("/")
    legal = (STABILITIES, STABILITIES, CLASSES)
    if len(parts) > 3 or any(part.lower() not in words
                             for part, words in zip(parts, legal, strict=False)):
        raise AttributeValueError("Invalid value for specified option")
    return value


# What providers promise of their probes, the least of provider, module, function and name, and of
# the arguments.
PROBES = "Private/Private/Unknown"
ARGUMENTS_OF_OWN, ARGUMENTS_OF_OTHERS = "Stable/Stable/Common", "Private/Private/ISA"


def of_probe(provider: str) -> tuple[str, str]:
    """Attributes of a provider's probes, and of their arguments."""
    return PROBES, ARGUMENTS_OF_OWN if provider == "dtrace" else ARGUMENTS_OF_OTHERS


# What the variables of DTrace promise: their names and data, and where (DTrace guide, "Stability").
USUAL = "Stable/Stable/Common"
OTHERS = {"curthread": "Stable/Private/Common"}


def below(name: str, least: str) -> str | None:
    """The attributes of a variable of DTrace's, where a part of them is less than is asked for."""
    own = OTHERS.get(name, USUAL)
    legal = (STABILITIES, STABILITIES, CLASSES)
    for words, has, wanted in zip(legal, own.lower().split("/"), least.lower().split("/"),
                                  strict=False):
        if words.index(has) < words.index(wanted):
            return own
    return None


def parse_version(value: str) -> str:
    text = value
    if not re.fullmatch(r"\d{1,3}\.\d{1,4}(\.\d{1,4})?", text):
        raise AttributeValueError("Version is not properly formatted or is too large")
    if text not in VERSIONS and text.removesuffix(".0") not in VERSIONS:
        raise AttributeValueError("Requested version is not supported by compiler")
    return text
