"""Text that is written through templates, the files of a package's folder ``templates``: what is
put into them is escaped."""

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


@functools.cache
def templates(package: str) -> "Environment":
    """The templates of a package; one that is given no value for a name is an error."""
    import jinja2  # most commands write nothing through it

    return jinja2.Environment(
        loader=jinja2.PackageLoader(package), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
