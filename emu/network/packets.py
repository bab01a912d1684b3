"""Packets of the Internet protocols: what is read from a frame, and how a reply is made.

The frames come from the guest and may contain anything.
"""

import struct
from dataclasses import dataclass

import dpkt

IPV4, ARP = 0x0800, 0x0806  # EtherTypes
ICMP, TCP, UDP = 1, 6, 17  # IP protocols
HEAD = struct.Struct("!6s6sH")  # destination, source, EtherType
IPV4_HEAD = struct.Struct("!BBHHHBBH4s4s")
FRAGMENT = 0x3FFF  # more fragments, and fragment offset
BROADCAST = b"\xff" * 6
# Exceptions that dpkt raises for malformed packets.
MALFORMED = (dpkt.Error, struct.error, IndexError, ValueError)


@dataclass(frozen=True)
class Ipv4:
    """An IPv4 packet that is not a fragment.

    :param head: the header with its options.
    """

    source: bytes
    destination: bytes
    protocol: int
    head: bytes
    data: bytes


def read_ipv4(body: bytes) -> Ipv4 | None:
    """Return a whole IPv4 packet with a correct header checksum, or None.

    dpkt would also parse the payload, whatever protocol the guest names.
    """
    if len(body) < IPV4_HEAD.size:
        return None
    first, _tos, size, _id, fragment, _ttl, protocol, _sum, source, destination = (
        IPV4_HEAD.unpack_from(body))
    length = (first & 0xF) * 4
    if (first >> 4 != 4 or not IPV4_HEAD.size <= length <= size <= len(body)
            or fragment & FRAGMENT or dpkt.in_cksum(body[:length])):
        return None
    return Ipv4(source, destination, protocol, body[:length], body[length:size])


def checksum_fits(packet: Ipv4) -> bool:
    """Return whether the UDP or TCP checksum of a packet is correct."""
    pseudo = struct.pack("!4s4sxBH", packet.source, packet.destination, packet.protocol,
                         len(packet.data))
    return not dpkt.in_cksum(pseudo + packet.data)


def ipv4(source: bytes, destination: bytes, protocol: int, data: object) -> bytes:
    """Return an IPv4 packet with checksums.

    :param data: a dpkt packet.
    """
    return bytes(dpkt.ip.IP(src=source, dst=destination, p=protocol, data=data, id=0, ttl=64))
