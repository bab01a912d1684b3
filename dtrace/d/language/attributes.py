"""D's stability attributes and versions, for pragmas and options (DTrace guide, "Stability")."""

import functools
import re
from collections.abc import Iterable, Sequence

from emu.host.errors import KinstError

VERSIONS = ("1.0", "1.1", "1.2", "1.2.1", "1.2.2", "1.3", "1.4", "1.4.1", "1.5", "1.6", "1.6.1",
            "1.6.2", "1.6.3", "1.7", "1.7.1", "1.8", "1.8.1", "1.9", "1.9.1", "1.10", "1.11",
            "1.12", "1.12.1", "1.13")
VERSION = VERSIONS[-1]


class AttributeValueError(KinstError):
    """Error for invalid stability attributes or an invalid version."""


STABILITIES = ("internal", "private", "obsolete", "external", "unstable", "evolving", "stable",
               "standard")
CLASSES = ("unknown", "cpu", "platform", "group", "isa", "common")


def parse_attributes(value: str) -> str:
    """Check stability attributes, written ``name/data/class``, and return them.

    :raises AttributeValueError: if they are invalid.
    """
    parts = value.split("/")
    legal = (STABILITIES, STABILITIES, CLASSES)
    if len(parts) > 3 or any(part.lower() not in words
                             for part, words in zip(parts, legal, strict=False)):
        raise AttributeValueError("Invalid value for specified option")
    return value


# Provider -> stability attributes of its name, modules, functions, probe names and arguments.
HIDDEN = "Private/Private/Unknown"
USUAL = "Stable/Stable/Common"  # also the attributes of most variables (DTrace guide, "Stability")
KERNEL_PROVIDERS = ("Evolving/Evolving/Common", HIDDEN, "Private/Private/ISA",
                    "Evolving/Evolving/Common", "Private/Private/ISA")
PROMISES = {
    "dtrace": (USUAL, HIDDEN, HIDDEN, USUAL, USUAL),
    "dtmalloc": (USUAL, HIDDEN, HIDDEN, USUAL, USUAL),
    "pid": ("Evolving/Evolving/ISA", HIDDEN, HIDDEN, "Evolving/Evolving/ISA", HIDDEN),
}
NO_PROVIDER = "Unstable/Unstable/Common"  # attributes of probe descriptions without a provider
OTHERS = {"curthread": "Stable/Private/Common"}
GLOB = re.compile(r"[*?\[]")


@functools.lru_cache(1 << 10)
def least(*attributes: str) -> str:
    """Combine attributes: return the lowest value of each part (names, data, class)."""
    parts = []
    for words, *given in zip((STABILITIES, STABILITIES, CLASSES),
                             *(value.split("/") for value in attributes), strict=True):
        word = min(given, key=lambda one: words.index(one.lower()))
        parts.append(word)
    return "/".join(parts)


def attributes_text(numbers: Sequence[int]) -> str:
    """Return stability attributes, given by the numbers of the three words.

    :raises AttributeValueError: if there are no such words.
    """
    name, data, depends = numbers
    if max(name, data) >= len(STABILITIES) or depends >= len(CLASSES):
        raise AttributeValueError(f"{name}, {data}, {depends} are not stability attributes")
    return "/".join(("ISA" if word == "isa" else word.capitalize()) for word in (
        STABILITIES[name], STABILITIES[data], CLASSES[depends]))


def of_provider(provider: str, declared: Sequence[str] = ()) -> Sequence[str]:
    """Return a provider's stability attributes; a process ID at the end of its name is ignored.

    :param declared: the attributes, if a program declares the provider.
    """
    return declared or PROMISES.get(provider.rstrip("0123456789"), KERNEL_PROVIDERS)


def of_description(provider: str, module: str, function: str, name: str,
                   declared: Sequence[str] = ()) -> str:
    """Return the least stable attributes of the parts that a probe description specifies.

    :param declared: see ``of_provider``.
    """
    if not provider or GLOB.search(provider):
        return NO_PROVIDER
    own, *parts, _arguments = of_provider(provider, declared)
    return least(own, *(promised for promised, part in zip(
        parts, (module, function, name), strict=True) if part and not GLOB.search(part)))


def of_probe(provider: str, module: str, function: str, name: str, declared: Sequence[str] = ()
             ) -> tuple[str, str]:
    """Return the attributes of a probe, and the attributes of the probe's arguments."""
    return (of_description(provider, module, function, name, declared),
            of_provider(provider, declared)[4])


def of_names(names: Iterable[str], arguments: str) -> str:
    """Return the least stable attributes of the variables that a clause uses.

    :param names: names of variables; those of kernel symbols contain a backquote.
    :param arguments: attributes of ``args[]``.
    """
    return least(USUAL, *(HIDDEN if "`" in name else arguments if name == "args"
                          else OTHERS.get(name, USUAL) for name in names))


def below(name: str, least: str) -> str | None:
    """Return a D variable's attributes if any part is below the required stability, else None."""
    own = OTHERS.get(name, USUAL)
    legal = (STABILITIES, STABILITIES, CLASSES)
    for words, has, wanted in zip(legal, own.lower().split("/"), least.lower().split("/"),
                                  strict=False):
        if words.index(has) < words.index(wanted):
            return own
    return None


def parse_version(value: str) -> str:
    """Check a version of D and return it.

    :raises AttributeValueError: if it is malformed or unknown.
    """
    text = value
    if not re.fullmatch(r"\d{1,3}\.\d{1,4}(\.\d{1,4})?", text):
        raise AttributeValueError("Version is not properly formatted or is too large")
    if text not in VERSIONS and text.removesuffix(".0") not in VERSIONS:
        raise AttributeValueError("Requested version is not supported by compiler")
    return text
