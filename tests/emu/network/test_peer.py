"""Tests of the built-in peer: its services, its TCP, and what it does with hostile frames."""

import json
import random
import struct

import dpkt
import pytest
from dpkt import arp, dhcp, dns, icmp
from dpkt.tcp import TH_ACK, TH_FIN, TH_PUSH, TH_RST, TH_SYN

from emu.host.errors import OtherContentError
from emu.machine.events import NEVER
from emu.network.link import MAX_FRAME, MIN_FRAME
from emu.network.peer import ADDRESS, GUEST, HARDWARE, Peer

OURS = bytes.fromhex("525400000001")
FILE = bytes(range(256)) * 1000
FILES = {"a.txt": b"hello\n", "dir/big": FILE}


class Wire:
    """The guest's end of the link."""

    def __init__(self, files=FILES):
        self.peer = Peer(files)
        self.now = 0

    def put(self, kind, body):
        self.peer.send(HARDWARE + OURS + struct.pack("!H", kind) + bytes(body), self.now)

    def ip(self, protocol, data, destination=ADDRESS):
        self.put(0x0800, dpkt.ip.IP(src=GUEST, dst=destination, p=protocol, data=data))

    def get(self, most=NEVER - 1):
        """Let time pass until frames arrive, and return them, or [] if none will."""
        while (when := self.peer.next) <= most:
            self.now = max(self.now, when)
            frames = self.peer.arrive(self.now)
            if frames:
                return [dpkt.ethernet.Ethernet(frame) for frame in frames]
        return []


def udp(port, data, source=5000):
    return dpkt.udp.UDP(sport=source, dport=port, data=data, ulen=8 + len(data))


def test_the_peer_answers_arp_only_for_its_own_address():
    wire = Wire()
    for target in (GUEST, ADDRESS):
        wire.put(0x0806, dpkt.arp.ARP(op=arp.ARP_OP_REQUEST, sha=OURS, spa=GUEST, tpa=target))
    (answer,) = wire.get()
    assert (answer.data.op, answer.data.sha, answer.data.spa) == (
        arp.ARP_OP_REPLY, HARDWARE, ADDRESS)
    assert wire.get() == []


def test_ping_is_answered_with_the_same_data():
    wire = Wire()
    wire.ip(1, dpkt.icmp.ICMP(type=icmp.ICMP_ECHO, data=dpkt.icmp.ICMP.Echo(id=7, seq=3,
                                                                            data=b"abcdefgh")))
    (answer,) = wire.get()
    reply = answer.data.data
    assert (reply.type, reply.data.id, reply.data.seq, reply.data.data) == (0, 7, 3, b"abcdefgh")
    assert dpkt.in_cksum(bytes(reply)) == 0


def test_a_packet_with_a_wrong_checksum_is_dropped():
    wire = Wire()
    data = bytearray(bytes(dpkt.ip.IP(src=GUEST, dst=ADDRESS, p=17, data=udp(7, b"ab"))))
    for place in (10, 26):  # the checksum of the header, and that of the datagram
        broken = data[:]
        broken[place] ^= 1
        wire.put(0x0800, broken)
    assert wire.get() == []
    wire.put(0x0800, data)
    assert len(wire.get()) == 1


def test_udp_echo_answers_discard_does_not_and_other_ports_are_unreachable():
    wire = Wire()
    wire.ip(17, udp(7, b"echo me"))
    (answer,) = wire.get()
    assert (answer.data.data.sport, bytes(answer.data.data.data)) == (7, b"echo me")
    wire.ip(17, udp(9, b"x"))
    assert wire.get() == []
    wire.ip(17, udp(4242, b"x"))
    (answer,) = wire.get()
    assert (answer.data.data.type, answer.data.data.code) == (3, 3)


def test_the_name_peer_has_an_address_and_other_names_do_not_exist():
    wire = Wire()
    for name, code, count in (("peer", 0, 1), ("PEER", 0, 1), ("example.org", 3, 0)):
        wire.ip(17, udp(53, bytes(dpkt.dns.DNS(id=9, op=dns.DNS_RD, qd=[
            dpkt.dns.DNS.Q(name=name, type=dns.DNS_A, cls=dns.DNS_IN)]))))
        (answer,) = wire.get()
        reply = dpkt.dns.DNS(bytes(answer.data.data.data))
        assert (reply.id, reply.qr, reply.rcode, len(reply.an)) == (9, 1, code, count)
        if count:
            assert reply.an[0].ip == ADDRESS


def ask_dhcp(wire, kind, *options):
    message = dpkt.dhcp.DHCP(op=1, xid=77, chaddr=OURS.ljust(16, b"\0"), opts=(
        (dhcp.DHCP_OPT_MSGTYPE, bytes((kind,))), *options))
    packet = dpkt.ip.IP(src=bytes(4), dst=b"\xff" * 4, p=17, data=udp(67, bytes(message), 68))
    wire.peer.send(b"\xff" * 6 + OURS + b"\x08\x00" + bytes(packet), wire.now)
    frames = wire.get()
    return dpkt.dhcp.DHCP(bytes(frames[0].data.data.data)) if frames else None


def test_dhcp_offers_and_gives_one_address_and_refuses_others():
    wire = Wire()
    offer = ask_dhcp(wire, dhcp.DHCPDISCOVER)
    assert (dict(offer.opts)[53], offer.yiaddr) == (b"\2", int.from_bytes(GUEST))
    given = ask_dhcp(wire, dhcp.DHCPREQUEST, (dhcp.DHCP_OPT_REQ_IP, GUEST),
                     (dhcp.DHCP_OPT_SERVER_ID, ADDRESS))
    options = dict(given.opts)
    assert options[53] == b"\5" and options[dhcp.DHCP_OPT_DNS_SVRS] == ADDRESS
    assert given.yiaddr == int.from_bytes(GUEST) and given.xid == 77
    other = ask_dhcp(wire, dhcp.DHCPREQUEST, (dhcp.DHCP_OPT_REQ_IP, bytes((10, 0, 2, 99))))
    assert (dict(other.opts)[53], other.yiaddr) == (b"\6", 0)
    assert ask_dhcp(wire, dhcp.DHCPREQUEST, (dhcp.DHCP_OPT_REQ_IP, GUEST),
                    (dhcp.DHCP_OPT_SERVER_ID, bytes((10, 0, 2, 3)))) is None


class Client:
    """A minimal TCP client that acknowledges everything in order."""

    def __init__(self, wire, port, local=40000, window=65535, mss=1460):
        self.wire, self.port, self.local, self.window = wire, port, local, window
        self.seq, self.ack, self.data, self.closed, self.reset = 1000, 0, b"", False, False
        self.segments = 0
        self.send(TH_SYN, options=b"\2\4" + struct.pack("!H", mss))
        self.seq += 1
        self.hear()

    def send(self, flags, data=b"", options=b""):
        segment = dpkt.tcp.TCP(sport=self.local, dport=self.port, seq=self.seq % 2**32,
                               ack=self.ack, flags=flags, win=self.window, data=data)
        segment.opts, segment.off = options, 5 + len(options) // 4
        self.wire.ip(6, segment)

    def write(self, data):
        self.send(TH_ACK | TH_PUSH, data)
        self.seq += len(data)

    def close(self):
        self.send(TH_ACK | TH_FIN)
        self.seq += 1

    def hear(self, lose=lambda number: False, patience=NEVER - 1):
        """Take frames until there are no more; ``lose`` says which segments are lost."""
        while frames := self.wire.get(patience):
            for frame in frames:
                segment = frame.data.data
                if frame.data.p != 6 or segment.dport != self.local:
                    continue
                assert not dpkt.in_cksum(struct.pack(
                    "!4s4sxBH", ADDRESS, GUEST, 6, len(bytes(segment))) + bytes(segment))
                self.segments += 1
                if lose(self.segments):
                    continue
                if segment.flags & TH_RST:
                    self.reset = True
                    continue
                if segment.flags & TH_SYN:
                    self.ack = (segment.seq + 1) % 2**32
                elif segment.seq == self.ack and (self.window or not segment.data):
                    self.data += segment.data
                    fin = bool(segment.flags & TH_FIN)
                    self.closed |= fin
                    self.ack = (self.ack + len(segment.data) + fin) % 2**32
                if segment.data or segment.flags & (TH_SYN | TH_FIN):
                    self.send(TH_ACK)


def test_tcp_echo_returns_everything_and_closes_after_the_guest():
    wire = Wire()
    client = Client(wire, 7)
    sent = b""
    for size in (1, 1460, 700, 1460):
        data = random.Random(size).randbytes(size)
        client.write(data)
        client.hear()
        sent += data
    assert client.data == sent and not client.closed
    client.close()
    client.hear()
    assert client.closed and wire.peer.state()["tcp"] == []


def test_tcp_discard_acknowledges_and_says_nothing():
    client = Client(Wire(), 9)
    client.write(b"x" * 1000)
    client.hear()
    client.close()
    client.hear()
    assert client.data == b"" and client.closed


@pytest.mark.parametrize("window", [65535, 1000, 100])
def test_http_serves_a_file_whatever_the_window_is(window):
    client = Client(Wire(), 80, window=window)
    client.write(b"GET /dir/big HTTP/1.1\r\nHost: peer\r\n\r\n")
    client.hear()
    head, _, body = client.data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK") and b"Content-Length: 256000" in head
    assert body == FILE and client.closed


def test_http_sends_lost_segments_again():
    wire = Wire()
    client = Client(wire, 80)
    client.write(b"GET /dir/big HTTP/1.1\r\n\r\n")
    r = random.Random(5)
    client.hear(lambda _number: r.random() < 0.1)
    assert client.data.endswith(FILE) and client.closed
    client.close()
    client.hear()
    assert wire.peer.state()["tcp"] == []


def test_a_closed_window_stops_the_peer_until_the_guest_opens_it():
    wire = Wire()
    client = Client(wire, 80, window=0)
    client.write(b"GET /a.txt HTTP/1.0\r\n\r\n")
    client.hear(patience=wire.now + 30 * 10**9)
    assert client.data == b"" and client.segments > 3  # the peer probes
    client.window = 65535
    client.send(TH_ACK)
    client.hear()
    assert client.data.endswith(b"\r\n\r\nhello\n")


@pytest.mark.parametrize(("request_line", "answer", "body"), [
    (b"GET / HTTP/1.1", b"200 OK", b'<a href="/dir/">dir/</a>'),
    (b"GET /dir/ HTTP/1.1", b"200 OK", b'<a href="/dir/big">big</a>'),
    (b"GET http://peer/a.txt HTTP/1.1", b"200 OK", b"hello\n"),
    (b"GET /%61.txt?x=1 HTTP/1.1", b"200 OK", b"hello\n"),
    (b"GET /../etc/passwd HTTP/1.1", b"404 Not Found", b"404"),
    (b"GET /missing HTTP/1.1", b"404 Not Found", b"404"),
    (b"HEAD /a.txt HTTP/1.1", b"200 OK", b""),
    (b"POST /a.txt HTTP/1.1", b"501 Not Implemented", b"501"),
    (b"nonsense", b"400 Bad Request", b"400"),
    (b"x" * 9000, b"400 Bad Request", b"400"),
])
def test_http_answers_each_kind_of_request(request_line, answer, body):
    client = Client(Wire(), 80)
    request = request_line + b"\r\n\r\n"
    for at in range(0, len(request), 1000):
        client.write(request[at : at + 1000])
        client.hear()
    head, _, rest = client.data.partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"HTTP/1.1 " + answer
    assert body in rest and client.closed and (body or not rest)


def test_a_port_without_a_service_refuses_connections():
    client = Client(Wire(), 22)
    assert client.reset


@pytest.mark.parametrize("options", [b"\1\1\1\2", b"\2\4\5", b"\2\0\0\0", b"\xff" * 4])
def test_malformed_options_are_ignored(options):
    wire = Wire()
    segment = dpkt.tcp.TCP(sport=1, dport=7, seq=5, flags=TH_SYN)
    segment.opts, segment.off = options.ljust(4, b"\0"), 6
    wire.ip(6, segment)
    (answer,) = wire.get()
    assert answer.data.data.flags == TH_SYN | TH_ACK


def test_the_order_of_connections_does_not_depend_on_a_restore():
    wires = Wire(), Wire()
    for wire in wires:
        for port in (50001, 50000):
            wire.ip(6, dpkt.tcp.TCP(sport=port, dport=7, seq=5, flags=TH_SYN))
    state = json.loads(json.dumps(wires[1].peer.state()))
    wires[1].peer = Peer(FILES)
    wires[1].peer.restore(state)
    for _ in range(12):
        one, two = ([bytes(frame) for frame in wire.get()] for wire in wires)
        assert one == two


def test_a_small_segment_size_does_not_multiply_the_frames():
    client = Client(Wire(), 80, mss=1)
    client.write(b"GET /dir/big HTTP/1.1\r\n\r\n")
    client.hear()
    assert client.data.endswith(FILE) and client.segments < 256_000 // 200 + 20


def test_frames_on_their_way_have_a_limit():
    peer = Peer({})
    for i in range((64 << 20) // 1518 + 100):
        peer.schedule(i, bytes(1518))
    assert len(peer.state()["coming"]) == (64 << 20) // 1518


def test_a_state_with_a_served_file_belongs_to_these_files():
    wire = Wire()
    unused = wire.peer.state()
    assert not wire.peer.used
    client = Client(wire, 80)
    client.write(b"GET /a.txt HTTP/1.1\r\n\r\n")
    used = wire.peer.state()
    assert wire.peer.used
    other = Peer(FILES, "other")
    other.restore(unused)
    with pytest.raises(OtherContentError, match="other files"):
        other.restore(used)
    client.hear()


def test_a_guest_that_never_answers_is_forgotten():
    wire = Wire()
    wire.ip(6, dpkt.tcp.TCP(sport=1, dport=7, seq=5, flags=TH_SYN))
    heard = 0
    while wire.get():
        heard += 1
    assert heard == 9 and wire.peer.state()["tcp"] == []


def test_a_restored_peer_goes_on_as_the_original():
    wires = Wire(), Wire()
    clients = [Client(wire, 80) for wire in wires]
    for client in clients:
        client.write(b"GET /dir/big HTTP/1.1\r\n\r\n")
    (one, two) = wires
    for _ in range(20):
        assert [bytes(f) for f in one.get()] == [bytes(f) for f in two.get()]
    state = json.loads(json.dumps(one.peer.state()))
    one.peer = Peer(FILES)
    one.peer.restore(state)
    for client in clients:
        client.hear()
    assert clients[0].data == clients[1].data and one.peer.state() == two.peer.state()


def mutated(value, r):
    """Return a JSON value with one part replaced by another value."""
    if isinstance(value, dict) and value:
        key = r.choice(sorted(value))
        return value | {key: mutated(value[key], r)} if r.random() < 0.9 else {
            name: one for name, one in value.items() if name != key}
    if isinstance(value, list) and value:
        place = r.randrange(len(value))
        return [*value[:place], mutated(value[place], r), *value[place + 1 :]]
    return r.choice((None, -1, 0, 1, 1 << 70, "", "zz", "00", [], {}, True, 1.5))


def test_a_hostile_state_is_refused_or_harmless():
    r = random.Random(3)
    wire = Wire()
    Client(wire, 80).write(b"GET /dir/big HTTP/1.1\r\n\r\n")
    wire.get()
    state = json.loads(json.dumps(wire.peer.state()))
    refused = 0
    for _ in range(3000):
        peer = Peer(FILES)
        try:
            peer.restore(mutated(state, r))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError,
                OtherContentError):
            refused += 1
            continue
        other = Wire()
        other.peer = peer
        for _ in range(30):
            if not other.get():
                break
    assert refused > 1500


def frames_seen():
    """Return frames that the peer understands, as seeds for mutation."""
    wire, frames = Wire(), []
    send = wire.peer.send
    wire.peer.send = lambda frame, now: (frames.append(frame), send(frame, now))
    wire.put(0x0806, dpkt.arp.ARP(op=1, sha=OURS, spa=GUEST, tpa=ADDRESS))
    wire.ip(1, dpkt.icmp.ICMP(type=8, data=dpkt.icmp.ICMP.Echo(id=7, seq=3, data=b"abcdefgh")))
    for port in (7, 9, 53, 67, 4242):
        wire.ip(17, udp(port, b"data"))
    wire.ip(17, udp(53, bytes(dpkt.dns.DNS(qd=[dpkt.dns.DNS.Q(name="peer", type=1, cls=1)]))))
    while wire.get():
        pass
    ask_dhcp(wire, dhcp.DHCPDISCOVER)
    client = Client(wire, 80)
    client.write(b"GET /a.txt HTTP/1.0\r\n\r\n")
    client.hear()
    client.close()
    return frames


def repaired(frame):
    """Return a frame with correct IPv4 and transport checksums, as far as it has them."""
    frame = bytearray(frame)
    if frame[12:14] != b"\x08\x00" or len(frame) < 34:
        return bytes(frame)
    length = (frame[14] & 15) * 4
    frame[24:26] = b"\0\0"
    frame[24:26] = struct.pack("!H", dpkt.in_cksum(bytes(frame[14 : 14 + length])))
    place = {6: 16, 17: 6, 1: 2}.get(frame[23])
    body = 14 + length
    if place is None or body + place + 2 > len(frame):
        return bytes(frame)
    frame[body + place : body + place + 2] = b"\0\0"
    data = bytes(frame[body : 14 + struct.unpack_from("!H", frame, 16)[0]])
    pseudo = b"" if frame[23] == 1 else bytes(frame[26:34]) + struct.pack(
        "!xBH", frame[23], len(data))
    frame[body + place : body + place + 2] = struct.pack("!H", dpkt.in_cksum(pseudo + data))
    return bytes(frame)


def test_hostile_frames_neither_break_the_peer_nor_make_it_grow():
    """Send 20,000 mutated frames, most of them with correct checksums; then all must work."""
    r = random.Random(57)
    seeds, wire, answered = frames_seen(), Wire(), 0
    for _ in range(20_000):
        frame = bytearray(r.choice(seeds))
        for _ in range(r.randrange(4)):
            frame[r.randrange(14, len(frame))] = r.choice((0, 1, 0x7F, 0x80, 0xFF,
                                                           r.randrange(256)))
        if len(frame) > 54 and frame[23] == 6 and r.random() < 0.5:
            frame[46] = r.randrange(256)  # the length of the TCP header, and with it the options
            frame[54:58] = bytes(r.choice((0, 1, 2, 3, 4, 8, 255)) for _ in range(4))
        if r.random() < 0.2:
            frame = frame[: r.randrange(MIN_FRAME, len(frame))]
        elif r.random() < 0.2:
            frame += r.randbytes(r.randrange(MAX_FRAME - len(frame)))
        wire.peer.send(repaired(frame) if r.random() < 0.9 else bytes(frame), wire.now)
        answered += len(wire.get(wire.now + r.choice((0, 10**6, 10**9))))
    assert answered > 5_000
    state = wire.peer.state()
    assert len(state["tcp"]) <= 256 and len(state["coming"]) < 5_000
    client = Client(wire, 80, local=1025)
    client.write(b"GET /a.txt HTTP/1.0\r\n\r\n")
    client.hear()
    assert client.data.endswith(b"hello\n")
