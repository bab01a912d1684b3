"""Name server that knows one name (RFC 1035)."""

import dpkt
from dpkt import dns

from emu.network.packets import MALFORMED

PORT = 53
TTL = 3600  # seconds for which an answer may be kept


def answer(data: bytes, name: str, address: bytes) -> bytes | None:
    """Return the reply to a query, or None.

    :param name: the known name, in lower case; every other name does not exist.
    :param address: its IPv4 address.
    """
    try:
        query = dpkt.dns.DNS(data)
    except MALFORMED:
        return None
    if query.qr or query.opcode or len(query.qd) != 1:
        return None
    (question,) = query.qd
    reply = dpkt.dns.DNS(id=query.id, op=dns.DNS_QR | dns.DNS_AA | query.op & dns.DNS_RD)
    reply.qd, reply.an, reply.ns, reply.ar = [question], [], [], []
    if question.name.lower() != name:
        reply.rcode = dns.DNS_RCODE_NXDOMAIN
    elif question.type == dns.DNS_A and question.cls == dns.DNS_IN:
        reply.an = [dpkt.dns.DNS.RR(name=question.name, type=dns.DNS_A, cls=dns.DNS_IN, ttl=TTL,
                                    rdata=address, ip=address)]
    try:
        return bytes(reply)
    except MALFORMED:
        return None
