"""DHCP server with one address to give (RFC 2131)."""

import struct

import dpkt
from dpkt import dhcp

from emu.network.packets import MALFORMED

SERVER_PORT, CLIENT_PORT = 67, 68
LEASE = 86400  # duration of a lease in seconds
# Message type -> type of the reply
REPLIES = {dhcp.DHCPDISCOVER: dhcp.DHCPOFFER, dhcp.DHCPREQUEST: dhcp.DHCPACK,
           dhcp.DHCPINFORM: dhcp.DHCPACK}


def answer(data: bytes, server: bytes, mask: bytes, guest: bytes) -> bytes | None:
    """Return the reply to a DHCP message, or None.

    A request for another address than ``guest`` is refused (DHCPNAK).
    """
    try:
        message = dpkt.dhcp.DHCP(data)
        options = dict(message.opts)
    except MALFORMED:
        return None
    kind = options.get(dhcp.DHCP_OPT_MSGTYPE, b"")
    if message.op != dhcp.DHCP_OP_REQUEST or len(kind) != 1 or kind[0] not in REPLIES:
        return None
    if options.get(dhcp.DHCP_OPT_SERVER_ID, server) != server:
        return None  # the client has chosen another server
    reply = REPLIES[kind[0]]
    wanted = options.get(dhcp.DHCP_OPT_REQ_IP) or struct.pack("!I", message.ciaddr)
    if kind[0] == dhcp.DHCPREQUEST and wanted != guest:
        reply = dhcp.DHCPNAK
    given = [(dhcp.DHCP_OPT_MSGTYPE, bytes((reply,))), (dhcp.DHCP_OPT_SERVER_ID, server)]
    if reply != dhcp.DHCPNAK:
        given += [(dhcp.DHCP_OPT_NETMASK, mask), (dhcp.DHCP_OPT_ROUTER, server),
                  (dhcp.DHCP_OPT_DNS_SVRS, server)]
    if reply != dhcp.DHCPNAK and kind[0] != dhcp.DHCPINFORM:
        given.append((dhcp.DHCP_OPT_LEASE_SEC, struct.pack("!I", LEASE)))
    address = 0 if reply == dhcp.DHCPNAK or kind[0] == dhcp.DHCPINFORM else int.from_bytes(guest)
    return bytes(dpkt.dhcp.DHCP(
        op=dhcp.DHCP_OP_REPLY, xid=message.xid, flags=message.flags, ciaddr=message.ciaddr,
        yiaddr=address, siaddr=int.from_bytes(server), chaddr=message.chaddr, opts=tuple(given)))
