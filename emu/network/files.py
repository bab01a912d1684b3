"""HTTP server for the files of a folder (RFC 9112): one request for each connection."""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote, unquote_to_bytes

from emu.host.input_file import Content

PORT = 80
MAX_REQUEST = 8192  # maximum size of a request's head in bytes
END = b"\r\n\r\n"
REQUEST = re.compile(rb"([A-Z]+) (?:http://[^ /]*)?(/[!-~]*) HTTP/1\.[01]\r\n")
NO_FILE = ""


@dataclass(frozen=True)
class Response:
    """A response: its head, with the body of pages that the server makes, and the file to send.

    :param file: path of the file below the folder, or NO_FILE.
    """

    head: bytes
    file: str = NO_FILE


def respond(request: bytes, files: Mapping[str, Content]) -> Response:
    """Return the response to a request.

    :param request: the request's head, or its beginning if it is too long.
    :param files: path below the folder -> content.
    """
    match = REQUEST.match(request)
    if match is None or END not in request:
        return _page(HTTPStatus.BAD_REQUEST)
    if match[1] not in (b"GET", b"HEAD"):
        return _page(HTTPStatus.NOT_IMPLEMENTED)
    head_only = match[1] == b"HEAD"
    path = unquote_to_bytes(match[2].split(b"?")[0]).decode("utf-8", "replace").strip("/")
    if path in files:
        head = _head(HTTPStatus.OK, "application/octet-stream", len(files[path]))
        return Response(head, NO_FILE if head_only else path)
    names = _names(path, files)
    if not names:
        return _page(HTTPStatus.NOT_FOUND, head_only)
    links = "".join(f'<li><a href="/{quote(f"{path}/{name}".lstrip("/"))}">{html.escape(name)}</a>'
                    "\n" for name in names)
    return _page(HTTPStatus.OK, head_only, f"<ul>\n{links}</ul>\n")


def _names(path: str, files: Mapping[str, Content]) -> list[str]:
    """Return the names in a directory below the folder, those of directories with a final /."""
    below = [file[len(path) :].lstrip("/") for file in files
             if not path or file.startswith(path + "/")]
    return sorted({name.split("/")[0] + ("/" if "/" in name else "") for name in below})


def _page(status: HTTPStatus, head_only: bool = False, body: str | None = None) -> Response:
    text = f"{status.value} {status.phrase}\n" if body is None else body
    page = f"<!DOCTYPE html>\n<title>{status.phrase}</title>\n{text}".encode()
    head = _head(status, "text/html; charset=utf-8", len(page))
    return Response(head if head_only else head + page)


def _head(status: HTTPStatus, kind: str, size: int) -> bytes:
    return (f"HTTP/1.1 {status.value} {status.phrase}\r\nServer: kinst-emu\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n").encode()
