"""Jinja templates in the ``templates`` directory of a package; inserted values are escaped."""

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


@functools.cache
def templates(package: str) -> "Environment":
    """Return the Jinja environment for a package's templates; an undefined name is an error."""
    import jinja2  # imported late, because most commands do not need Jinja

    return jinja2.Environment(
        loader=jinja2.PackageLoader(package), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
