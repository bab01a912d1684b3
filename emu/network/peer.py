"""The built-in peer: a host on the guest's network that offers a few services.

It answers ARP, DHCP, names (DNS), ICMP echo requests, and UDP and TCP to the ports echo and
discard, and serves files over HTTP.  What it does depends only on the frames and on their virtual
times.
"""

from collections.abc import Mapping
from typing import Any

import dpkt
from dpkt import arp, icmp

from emu.host.errors import OtherContentError
from emu.host.input_file import Content
from emu.network import dhcp, names
from emu.network.link import Link
from emu.network.packets import (
    ARP,
    BROADCAST,
    HEAD,
    ICMP,
    IPV4,
    MALFORMED,
    TCP,
    UDP,
    Ipv4,
    checksum_fits,
    ipv4,
    read_ipv4,
)
from emu.network.tcp import DISCARD, ECHO, TcpServer

NAME = "peer"
HARDWARE = bytes.fromhex("525400000002")  # the peer's Ethernet address
ADDRESS, GUEST, MASK = bytes((10, 0, 2, 2)), bytes((10, 0, 2, 15)), bytes((255, 255, 255, 0))
ALL_HOSTS = b"\xff" * 4
LATENCY = 100_000  # time in ns until the answer to a frame arrives
BYTE = 8  # time in ns that a byte of a frame takes (1 Gbit/s)
QUOTED = 8  # number of bytes of a packet's data in an ICMP error


class Peer(Link):
    """The built-in peer at the other end of the link.

    :param files: files that its HTTP server offers: path -> content.
    :param digest: digest of the files.
    """

    def __init__(self, files: Mapping[str, Content], digest: str = "-") -> None:
        super().__init__()
        self._digest = digest
        self._tcp = TcpServer(files)
        self._free = 0  # virtual time at which the link has transmitted the last frame
        self._guest = BROADCAST  # Ethernet address of the last sender

    def send(self, frame: bytes, now: int) -> None:
        destination, source, kind = HEAD.unpack_from(frame)
        body = frame[HEAD.size :]
        if destination not in (HARDWARE, BROADCAST):
            return
        self._guest = source
        if kind == ARP:
            self._arp(body, now)
        elif kind == IPV4 and (packet := read_ipv4(body)) is not None:
            self._ip(packet, now)

    @property
    def next(self) -> int:
        return min(super().next, self._tcp.next)

    def arrive(self, now: int) -> list[bytes]:
        for guest, segment in self._tcp.due(now):
            self._reply(guest, TCP, segment, now)
        return super().arrive(now)

    def _out(self, kind: int, body: bytes, now: int) -> None:
        frame = HEAD.pack(self._guest, HARDWARE, kind) + body
        self._free = max(self._free, now + LATENCY) + BYTE * len(frame)
        self.schedule(self._free, frame)

    def _reply(self, guest: bytes, protocol: int, data: object, now: int) -> None:
        self._out(IPV4, ipv4(ADDRESS, guest, protocol, data), now)

    def _arp(self, body: bytes, now: int) -> None:
        try:
            request = dpkt.arp.ARP(body)
        except MALFORMED:
            return
        if request.op == arp.ARP_OP_REQUEST and request.tpa == ADDRESS:
            self._out(ARP, bytes(dpkt.arp.ARP(
                op=arp.ARP_OP_REPLY, sha=HARDWARE, spa=ADDRESS, tha=request.sha,
                tpa=request.spa)), now)

    def _ip(self, packet: Ipv4, now: int) -> None:
        if packet.protocol == UDP:
            self._udp(packet, now)
        elif packet.destination != ADDRESS:
            return
        elif packet.protocol == ICMP:
            data = packet.data
            if len(data) >= 8 and data[0] == icmp.ICMP_ECHO and not dpkt.in_cksum(data):
                self._reply(packet.source, ICMP, dpkt.icmp.ICMP(
                    type=icmp.ICMP_ECHOREPLY, data=data[4:]), now)
        elif packet.protocol == TCP and checksum_fits(packet):
            for segment in self._tcp.receive(packet.source, packet.data, now):
                self._reply(packet.source, TCP, segment, now)

    def _udp(self, packet: Ipv4, now: int) -> None:
        try:
            datagram = dpkt.udp.UDP(packet.data)
        except MALFORMED:
            return
        data = bytes(packet.data[8 : datagram.ulen])
        if datagram.ulen < 8 or datagram.ulen > len(packet.data) or (
                datagram.sum and not checksum_fits(packet)):
            return
        if datagram.dport == dhcp.SERVER_PORT and packet.destination in (ADDRESS, ALL_HOSTS):
            answer = dhcp.answer(data, ADDRESS, MASK, GUEST)
            if answer is not None:
                self._reply(packet.source if any(packet.source) else ALL_HOSTS, UDP,
                            _datagram(dhcp.SERVER_PORT, dhcp.CLIENT_PORT, answer), now)
            return
        if packet.destination != ADDRESS:
            return
        if datagram.dport == ECHO:
            answer = data
        elif datagram.dport == names.PORT:
            answer = names.answer(data, NAME, ADDRESS)
        elif datagram.dport == DISCARD:
            return
        else:
            quoted = packet.head + packet.data[:QUOTED]
            self._reply(packet.source, ICMP, dpkt.icmp.ICMP(
                type=icmp.ICMP_UNREACH, code=icmp.ICMP_UNREACH_PORT,
                data=bytes(4) + quoted), now)
            return
        if answer is not None:
            self._reply(packet.source, UDP, _datagram(datagram.dport, datagram.sport, answer), now)

    def state(self) -> dict[str, Any]:
        return super().state() | {"tcp": self._tcp.state(), "free": self._free,
                                  "guest": self._guest.hex(),
                                  "files": self._digest if self.used else ""}

    @property
    def used(self) -> bool:
        return self._tcp.used

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._tcp.restore(state["tcp"])
        if state["files"] not in ("", self._digest):
            raise OtherContentError("the state belongs to other files of the network's peer; give "
                                    "the folder as it was")
        self._tcp.used = state["files"] != ""
        free, guest = state["free"], bytes.fromhex(state["guest"])
        if type(free) is not int or not 0 <= free < 1 << 63 or len(guest) != 6:
            raise ValueError("the saved state of the network peer is invalid")
        self._free, self._guest = free, guest


def _datagram(source: int, destination: int, data: bytes) -> dpkt.udp.UDP:
    return dpkt.udp.UDP(sport=source, dport=destination, data=data, ulen=8 + len(data))
