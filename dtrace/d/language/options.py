"""Options of dtrace(1): ``-x name=value``, ``#pragma D option``, ``setopt()``."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from dtrace.d.language.attributes import AttributeValueError, parse_attributes, parse_version
from emu.host.errors import KinstError

BAD_NAME = "Invalid option name"
BAD_VALUE = "Invalid value for specified option"
BAD_CONTEXT = "Option cannot be used from within a D program"
ACTIVE = "Operation illegal when tracing is active"

U64 = 1 << 64
# Maximum time in ns (146 years), so that time + current date fits in a signed 64-bit integer.
MAX_TIME = 1 << 62
UNITS = {
    "": 1, "ns": 1, "nsec": 1, "us": 1000, "usec": 1000, "ms": 10**6, "msec": 10**6,
    "s": 10**9, "sec": 10**9, "m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9,
    "hour": 3600 * 10**9, "d": 86400 * 10**9, "day": 86400 * 10**9}
SCALES = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


class OptionError(KinstError):
    """Error for an option that could not be set, with the message of dtrace(1)."""


def _integer(text: str) -> int | None:
    """Parse an integer as strtoull(3) does; return None if the text is invalid."""
    match = re.fullmatch(r"\s*([-+]?)(0[xX][0-9a-fA-F]{1,20}|[0-9]{1,40})", text)
    if match is None:
        return None
    digits = match[2]
    if digits[0] == "0" and len(digits) > 1 and digits[1] not in "xX":
        if digits.strip("01234567"):
            return None
        value = int(digits, 8)
    else:
        value = int(digits, 0)
    return -value if match[1] == "-" else value


def parse_flag(value: str | None) -> int | None:
    """Return the value of a flag, or None to unset it; any number, including 0, sets the flag."""
    if value is None:
        return 0
    word = value.lower()
    if word in ("yes", "enable", "enabled", "true", "on", "set"):
        return 1
    if word in ("", "no", "disable", "disabled", "false", "off", "unset"):
        return None
    number = _integer(value)
    if number is None or not 0 <= number < U64 // 2:
        raise OptionError(BAD_VALUE)
    return number


def parse_size(value: str | None) -> int:
    """Parse a size with an optional suffix (k, m, g, t), and return the number of bytes."""
    if value is None:
        return 0
    match = re.fullmatch(r"(.*?)([kKmMgGtT]?)", value)
    number = None if match is None else _integer(match[1])
    if match is None or number is None or number < 0 or number >= U64:
        raise OptionError(BAD_VALUE)
    size = number << SCALES[match[2].lower()]
    if size >= U64:
        raise OptionError(BAD_VALUE)
    return size


def parse_rate(value: str | None) -> int:
    """Parse a time or a frequency (``hz``), and return nanoseconds."""
    if value is None:
        return 0
    match = re.fullmatch(r"([-+]?\w*?)([a-zA-Z]*)", value)
    number = None if match is None else _integer(match[1])
    if match is None or number is None or number < 0:
        raise OptionError(BAD_VALUE)
    suffix = match[2].lower()
    if suffix == "hz":
        if not number:
            raise OptionError(BAD_VALUE)
        return 10**9 // number
    if suffix not in UNITS or number * UNITS[suffix] > MAX_TIME:
        raise OptionError(BAD_VALUE)
    return number * UNITS[suffix]


def _one_of(*words: str) -> Callable[[str | None], str]:
    def parse(value: str | None) -> str:
        if value is None or value.lower() not in words:
            raise OptionError(BAD_VALUE)
        return value.lower()
    return parse


def _bare(value: str | None) -> int:
    if value is not None:
        raise OptionError(BAD_VALUE)
    return 1


def _text(value: str | None) -> str:
    if value is None:
        raise OptionError(BAD_VALUE)
    return value


def _output_format(value: str | None) -> str | None:
    if value == "html":
        raise OptionError("the output format html is not supported; use json or xml")
    if value not in ("json", "xml", "none"):
        raise OptionError(BAD_VALUE)
    return None if value == "none" else value


def _least(least: int) -> Callable[[str | None], int]:
    def parse(value: str | None) -> int:
        number = None if value is None else _integer(value)
        if number is None or number < least:
            raise OptionError(BAD_VALUE)
        return number
    return parse


def _held(parse: Callable[[str], str], value: str | None) -> str:
    try:
        return parse(_text(value))
    except AttributeValueError as error:
        raise OptionError(str(error)) from None


Value = int | str | None
Parse = Callable[[str | None], Value]

COMPILE: dict[str, Parse] = {
    **dict.fromkeys("aggpercpu argref core cpp cpphdrs defaultargs debug empty errtags kdefs "
                    "knodefs nolibs pspec strip udefs unodefs verbose zdefs".split(), _bare),
    **dict.fromkeys("droptags lazyload".split(), lambda _value: 1),
    "amin": lambda value: _held(parse_attributes, value),
    **dict.fromkeys("cpppath ctypes dtypes define incdir undef libdir syslibdir ldpath objcopypath "
                    "setenv unsetenv".split(), _text),
    "encoding": _one_of("ascii", "utf8"),
    "evaltime": _one_of("exec", "preinit", "postinit", "main"),
    "iregs": _least(1), "tregs": _least(1), "tree": _least(1), "pgmax": _least(0),
    "late": _one_of("dynamic", "static"),
    "linkmode": _one_of("kernel", "primary", "dynamic", "static"),
    "linktype": _one_of("elf", "dof"), "stdc": _one_of("a", "c", "s", "t"),
    "version": lambda value: _held(parse_version, value),
}
OUTSIDE = frozenset("cpphdrs cpppath define incdir undef ldpath objcopypath stdc setenv "
                    "unsetenv".split())
DYNAMIC: dict[str, Parse] = {
    **dict.fromkeys("agghist aggpack aggsortkey aggsortkeypos aggsortpos aggsortrev aggzoom "
                    "flowindent quiet rawbytes stackindent".split(), parse_flag),
    "aggrate": parse_rate, "switchrate": parse_rate,
}
FIXED: dict[str, Parse] = {
    **dict.fromkeys("cpu destructive grabanon jstackframes nspec stackframes temporal "
                    "ustackframes".split(), parse_flag),
    **dict.fromkeys("aggsize bufsize dynvarsize jstackstrsize specsize strsize".split(),
                    parse_size),
    "cleanrate": parse_rate, "statusrate": parse_rate,
    "bufpolicy": _one_of("ring", "fill", "switch"), "bufresize": _one_of("auto", "manual"),
    "oformat": _output_format,
    "stackinline": parse_flag,  # extension: show inline functions and source lines in stack()
    "stackline": parse_flag,  # extension: like stackinline, but merge the frames of one source line
    "host-time": parse_flag,  # extension: without a kernel, use the host's clock for timestamps
}
DEFAULTS: dict[str, Value] = {
    "aggsize": 4 << 20, "bufsize": 4 << 20, "dynvarsize": 1 << 20, "specsize": 32 << 10,
    "strsize": 256, "nspec": 1, "stackframes": 20, "ustackframes": 20, "jstackframes": 50,
    "jstackstrsize": 512, "switchrate": 10**9, "aggrate": 10**9, "statusrate": 10**9,
    "cleanrate": 10**9 // 101, "bufpolicy": "switch", "bufresize": "auto", "temporal": 1,
    "stackindent": 14,
}


@dataclass
class Options:
    """Values of the options.

    :param active: whether tracing has begun, after which some options cannot be changed.
    :param defines: the options ``define``, ``undef`` and ``incdir``, in the order of their use.
    :param allowed_outside: whether ``-w`` allows destructive actions; if only an option in the
        program does, actions on the host remain forbidden.
    """

    values: dict[str, Value] = field(default_factory=lambda: dict(DEFAULTS))
    active: bool = False
    defines: list[tuple[str, str]] = field(default_factory=list)
    allowed_outside: bool = False

    def set(self, name: str, value: str | None, inside: bool = False) -> None:
        """Set an option.

        :param inside: whether the option comes from a D program.
        :raises OptionError: if the option cannot be set, with the reason.
        """
        if name in COMPILE:
            if inside and name in ("setenv", "unsetenv"):
                raise OptionError(BAD_CONTEXT)
            parsed = COMPILE[name](value)
            if name == "unsetenv" and "=" in str(parsed):
                raise OptionError(BAD_VALUE)
            if inside and name in OUTSIDE:
                raise OptionError(BAD_CONTEXT)
            if self.active:
                raise OptionError(ACTIVE)
            if name in ("define", "undef", "incdir"):
                self.defines.append((name, str(parsed)))
        elif name in DYNAMIC:
            parsed = DYNAMIC[name](value)
        elif name in FIXED:
            if self.active:
                raise OptionError(ACTIVE)
            parsed = FIXED[name](value)
        else:
            raise OptionError(BAD_NAME)
        self.values[name] = parsed
        if name == "destructive" and not inside:
            self.allowed_outside = parsed is not None

    def given(self, name: str) -> bool:
        """Return whether a flag is set; a flag with the value 0 counts as set.

        An output format implies ``quiet``.
        """
        return self.values.get(name) is not None or (
            name == "quiet" and self.values.get("oformat") is not None)

    def number(self, name: str) -> int:
        """Return the value of a numeric option, or 0 if the option is unset."""
        value = self.values.get(name)
        return value if isinstance(value, int) else 0

    def text(self, name: str) -> str:
        """Return the value of a text option, or an empty string if the option is unset."""
        value = self.values.get(name)
        return value if isinstance(value, str) else ""
