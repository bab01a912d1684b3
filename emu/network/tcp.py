"""TCP server for one address (RFC 9293): echo, discard and HTTP.

Only the guest opens connections.  Segments that arrive out of order are dropped, and lost segments
are sent again after a timeout; there are no options except the maximum segment size.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import dpkt
from dpkt.tcp import TCP_OPT_MSS, TH_ACK, TH_FIN, TH_PUSH, TH_RST, TH_SYN

from emu.host.input_file import Content
from emu.machine.events import NEVER
from emu.network import files as http
from emu.network.packets import MALFORMED

ECHO, DISCARD = 7, 9  # ports
SERVICES = ECHO, DISCARD, http.PORT
SEGMENT = 1460  # maximum size in bytes of the data in a segment
NO_OPTION = 536  # maximum size of a segment for a guest that states none
LEAST = 216  # the peer sends no smaller segments, whatever the guest states
WINDOW = 65535  # maximum number of bytes that are received, or sent, without acknowledgement
MAX_CONNECTIONS = 256
FIRST_RETRY = 200_000_000  # time in ns until a segment is sent again the first time
MOST_RETRIES = 8
HALF = 1 << 31
Key = tuple[bytes, int, int]  # the guest's address, the guest's port and the server's port


@dataclass
class Connection:
    """State of a connection.

    Stream offsets count the bytes that the server sends; the stream is ``head``, which begins at
    the offset ``begin``, followed by the file.

    :param first: sequence number of stream offset 0.
    :param expected: sequence number of the next byte from the guest.
    :param acknowledged: stream offset up to which the guest has acknowledged the stream.
    :param sent: stream offset up to which the stream was sent; the FIN counts as a byte.
    :param top: the largest value of ``sent`` so far: after a timeout, the server begins again.
    :param opened: whether the guest has acknowledged the server's SYN.
    :param closing: whether the server sends no more than the stream.
    :param heard: whether the guest has sent its FIN.
    :param request: beginning of an HTTP request.
    :param retry: virtual time at which to send again, or NEVER.
    """

    first: int
    expected: int
    window: int
    segment: int
    acknowledged: int = 0
    sent: int = 0
    top: int = 0
    opened: bool = False
    closing: bool = False
    heard: bool = False
    request: bytes = b""
    begin: int = 0
    head: bytes = b""
    file: str = http.NO_FILE
    retry: int = NEVER
    retries: int = 0


class TcpServer:
    """The server's connections.

    :param files: files that the HTTP server offers: path -> content.
    """

    def __init__(self, files: Mapping[str, Content]) -> None:
        self._files = files
        self._connections: dict[Key, Connection] = {}
        self.used = False  # whether the guest has asked the HTTP server for anything

    @property
    def next(self) -> int:
        """Virtual time at which ``due`` has something to do, or NEVER."""
        return min((one.retry for one in self._connections.values()), default=NEVER)

    def receive(self, guest: bytes, data: bytes, now: int) -> list[dpkt.tcp.TCP]:
        """Take a segment from the guest.

        :param guest: the guest's address.
        :return: the segments to send.
        """
        try:
            segment = dpkt.tcp.TCP(data)
            # dpkt returns None for an option that is cut off.
            options = dict(option for option in dpkt.tcp.parse_opts(segment.opts) if option)
        except MALFORMED:
            return []
        key = guest, segment.sport, segment.dport
        connection = self._connections.get(key)
        if segment.flags & TH_RST:
            self._connections.pop(key, None)
            return []
        if segment.flags & TH_SYN and not segment.flags & TH_ACK:
            return self._open(key, segment, options, now)
        if connection is None:
            return [_refusal(segment)]
        if not segment.flags & TH_ACK:
            return []
        heard = self._acknowledge(key, connection, segment, now)
        answer = self._take(key, connection, segment)
        out = self._output(key, connection, now)
        if not out and (answer or not heard):
            out = [_made(key, connection, connection.sent)]
        if connection.heard and connection.acknowledged > self._size(connection):
            self._connections.pop(key, None)
        return out

    def due(self, now: int) -> list[tuple[bytes, dpkt.tcp.TCP]]:
        """Return the (guest's address, segment) to send again because a time has passed."""
        out = []
        for key, connection in sorted(self._connections.items(), key=lambda item: item[0]):
            if connection.retry > now:
                continue
            connection.retries += 1
            if connection.retries > MOST_RETRIES:
                del self._connections[key]
                continue
            connection.sent = connection.acknowledged
            again = ([_greeting(key, connection)] if not connection.opened
                     else self._output(key, connection, now, probe=True))
            connection.retry = now + (FIRST_RETRY << connection.retries)
            out += [(key[0], segment) for segment in again]
        return out

    # -- from the guest ---------------------------------------------------------------------------

    def _open(self, key: Key, segment: dpkt.tcp.TCP, options: dict[int, bytes],
              now: int) -> list[dpkt.tcp.TCP]:
        if key[2] not in SERVICES or (
                key not in self._connections and len(self._connections) >= MAX_CONNECTIONS):
            return [_refusal(segment)]
        size = int.from_bytes(options.get(TCP_OPT_MSS, b"")[:2]) or NO_OPTION
        seed = hashlib.sha256(repr((key, segment.seq)).encode()).digest()
        connection = self._connections[key] = Connection(
            int.from_bytes(seed[:4]), (segment.seq + 1) % 2**32, segment.win,
            max(min(size, SEGMENT), LEAST), retry=now + FIRST_RETRY)
        return [_greeting(key, connection)]

    def _acknowledge(self, key: Key, connection: Connection, segment: dpkt.tcp.TCP,
                     now: int) -> bool:
        """Take an acknowledgement; return whether it acknowledges something new."""
        ahead = (segment.ack - connection.first - connection.acknowledged) % 2**32
        if ahead > connection.top - connection.acknowledged:
            return False
        new = ahead > 0 or not connection.opened
        connection.opened, connection.window = True, segment.win
        connection.acknowledged += ahead
        connection.sent = max(connection.sent, connection.acknowledged)
        gone = min(connection.acknowledged - connection.begin, len(connection.head))
        connection.head, connection.begin = connection.head[gone:], connection.begin + gone
        if new or not segment.win:
            connection.retries = 0
        if new:
            done = connection.acknowledged == connection.top
            connection.retry = NEVER if done else now + FIRST_RETRY
        return new

    def _take(self, key: Key, connection: Connection, segment: dpkt.tcp.TCP) -> bool:
        """Take the data of a segment; return whether the guest needs an acknowledgement."""
        data, fin = bytes(segment.data), bool(segment.flags & TH_FIN)
        if not data and not fin:
            return False
        skip = (connection.expected - segment.seq) % 2**32
        if skip >= HALF or skip > len(data):
            return True  # a gap, or wholly old
        room = _room(connection)
        data = data[skip:]
        fin = fin and len(data) <= room and not connection.heard
        data = data[:room]
        connection.expected = (connection.expected + len(data) + fin) % 2**32
        if key[2] == ECHO and not connection.closing:
            connection.head += data
        elif key[2] == http.PORT and not connection.closing:
            self._request(connection, data)
        if fin:
            connection.heard = connection.closing = True
        return True

    def _request(self, connection: Connection, data: bytes) -> None:
        connection.request = (connection.request + data)[: http.MAX_REQUEST]
        if http.END in connection.request or len(connection.request) == http.MAX_REQUEST:
            self.used = True
            response = http.respond(connection.request, self._files)
            connection.head, connection.file = response.head, response.file
            connection.closing = True

    # -- to the guest -----------------------------------------------------------------------------

    def _size(self, connection: Connection) -> int:
        """Return the stream offset of the end of the stream."""
        file = self._files[connection.file] if connection.file else b""
        return connection.begin + len(connection.head) + len(file)

    def _data(self, connection: Connection, offset: int, size: int) -> bytes:
        """Return at most ``size`` bytes of the stream."""
        behind = offset - connection.begin - len(connection.head)
        if behind < 0:
            return connection.head[offset - connection.begin :][:size]
        return bytes(self._files[connection.file][behind : behind + size])

    def _output(self, key: Key, connection: Connection, now: int,
                probe: bool = False) -> list[dpkt.tcp.TCP]:
        """Return the segments that the guest's window allows.

        :param probe: whether to send at least one byte.
        """
        out: list[dpkt.tcp.TCP] = []
        if not connection.opened:
            return out
        end = self._size(connection)
        limit = connection.acknowledged + max(min(connection.window, WINDOW), int(probe))
        while connection.sent < min(end, limit):
            data = self._data(connection, connection.sent,
                              min(connection.segment, limit - connection.sent))
            out.append(_made(key, connection, connection.sent, data))
            connection.sent += len(data)
        if connection.closing and connection.sent == end:
            out.append(_made(key, connection, connection.sent, flags=TH_FIN))
            connection.sent += 1
        connection.top = max(connection.top, connection.sent)
        if (out or connection.sent < end) and connection.retry == NEVER:
            connection.retry = now + FIRST_RETRY
        return out

    # -- snapshots --------------------------------------------------------------------------------

    def state(self) -> list[dict[str, Any]]:
        """Return the state as JSON-compatible values."""
        return [{"key": [key[0].hex(), *key[1:]]} | asdict(one) | {
            "request": one.request.hex(), "head": one.head.hex()}
            for key, one in sorted(self._connections.items())]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Restore a state returned by ``state``; the state may come from an untrusted file.

        :raises ValueError: if the state is invalid.
        :raises KeyError: if a part is missing.
        """
        connections: dict[Key, Connection] = {}
        for row in state:
            values = dict(row)
            address, *ports = values.pop("key")
            for name in ("request", "head"):
                values[name] = bytes.fromhex(values[name])
            own = Connection(0, 0, 0, 1)
            if values.keys() != asdict(own).keys() or not all(
                    type(value) is type(getattr(own, name)) for name, value in values.items()):
                raise ValueError("the saved state of a TCP connection is invalid")
            one = Connection(**values)
            guest_port, port = map(int, ports)
            key = bytes.fromhex(address), guest_port, port
            if not (len(key[0]) == 4 and self._is_sound(one)
                    and 0 <= guest_port < 1 << 16 and port in SERVICES):
                raise ValueError("the saved state of a TCP connection is invalid")
            connections[key] = one
        if len(connections) > MAX_CONNECTIONS:
            raise ValueError("the saved state has too many TCP connections")
        self._connections = connections

    def _is_sound(self, one: Connection) -> bool:
        """Return whether a connection from a file can be used."""
        return (0 <= one.first < 1 << 32 and 0 <= one.expected < 1 << 32
                and 0 <= one.window < 1 << 16 and LEAST <= one.segment <= SEGMENT
                and (one.file == http.NO_FILE or one.file in self._files)
                and 0 <= one.retry <= NEVER and 0 <= one.retries <= MOST_RETRIES
                and len(one.head) <= WINDOW + http.MAX_REQUEST
                and 0 <= one.begin <= self._size(one)
                and one.begin <= one.acknowledged <= one.sent
                and one.sent <= one.top <= self._size(one) + one.closing)


def _room(connection: Connection) -> int:
    """Return the size in bytes of the window that the server offers."""
    return max(WINDOW - len(connection.head), 0)


def _made(key: Key, connection: Connection, offset: int, data: bytes = b"",
          flags: int = 0) -> dpkt.tcp.TCP:
    """Return a segment at a stream offset."""
    return dpkt.tcp.TCP(sport=key[2], dport=key[1], seq=(connection.first + offset) % 2**32,
                        ack=connection.expected, win=_room(connection), data=data,
                        flags=TH_ACK | flags | (TH_PUSH if data else 0))


def _greeting(key: Key, connection: Connection) -> dpkt.tcp.TCP:
    """Return the SYN segment of the server."""
    segment = _made(key, connection, -1, flags=TH_SYN)
    segment.opts = bytes((TCP_OPT_MSS, 4)) + SEGMENT.to_bytes(2)
    segment.off = 6
    return segment


def _refusal(segment: dpkt.tcp.TCP) -> dpkt.tcp.TCP:
    """Return the reset that answers a segment without a connection."""
    if segment.flags & TH_ACK:
        return dpkt.tcp.TCP(sport=segment.dport, dport=segment.sport, seq=segment.ack, ack=0,
                            flags=TH_RST, win=0)
    length = len(segment.data) + bool(segment.flags & TH_SYN) + bool(segment.flags & TH_FIN)
    return dpkt.tcp.TCP(sport=segment.dport, dport=segment.sport, seq=0,
                        ack=(segment.seq + length) % 2**32, flags=TH_RST | TH_ACK, win=0)
