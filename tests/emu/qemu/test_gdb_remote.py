import socket
import threading

import pytest

from emu.host.errors import MachineError
from emu.qemu import gdb_remote
from emu.qemu.gdb_remote import GdbRemote, TargetRegister

ONE = TargetRegister("r1", 1, 8)
HELLO = {"qSupported": "PacketSize=1000", "qXfer:features:read:target.xml:0,7f0": "l<t/>",
         "?": "T05thread:01;"}


def packet(text):
    return b"$%s#%02x" % (text.encode(), sum(text.encode()) & 0xFF)


@pytest.fixture
def stub(tmp_path):
    """Return a function that starts a gdb stub with fixed replies and returns (client, packets)."""
    path, asked, ends = tmp_path / "gdb", [], []

    def start(answers, patience=5):
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.listen()

        def serve():
            connection, _address = server.accept()
            seen = b""
            while True:
                data = connection.recv(4096)
                if not data:
                    return
                seen += data
                while b"#" in seen and len(seen.split(b"#", 1)[1]) >= 2:
                    head, rest = seen.split(b"#", 1)
                    seen = rest[2:]
                    text = head.rpartition(b"$")[2].decode()
                    asked.append(text)
                    answer = (HELLO | answers).get(text)
                    if answer is None:
                        connection.close()
                        return
                    for part in [answer] if isinstance(answer, str) else answer:
                        connection.sendall(b"+" + packet(part))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        client = GdbRemote(path, patience)
        ends.extend((client, server))
        return client, asked

    yield start
    for end in ends:
        end.close()


def test_registers_are_read_and_written_in_target_byte_order(stub):
    client, asked = stub({"p10": "7856341200000000", "P5=efbeadde00000000": "OK"})
    assert client.read_register(TargetRegister("r16", 16, 8)) == 0x12345678
    client.write_register(5, 0xDEADBEEF)
    assert asked[-2:] == ["p10", "P5=efbeadde00000000"]


def test_a_late_stop_reply_is_not_taken_as_an_answer(stub):
    client, _asked = stub({"p1": ["T05thread:01;", "0100000000000000"]})
    assert client.read_register(ONE) == 1


def test_breakpoints_memory_writes_and_execution_use_the_right_packets(stub):
    client, asked = stub({"Z0,1000,4": "OK", "z0,1000,4": "OK", "M20,2:6869": "OK", "c": "T05",
                          "s": "T05"})
    client.insert(0x1000, 4)
    client.write(0x20, b"hi")
    assert client.go() == client.step() == "T05"
    client.remove(0x1000, 4)
    assert asked[3:] == ["Z0,1000,4", "M20,2:6869", "c", "s", "z0,1000,4"]


@pytest.mark.parametrize("answer, says", [
    ("E01", "refused 'p1': E01"), ("", "not supported"), ("zz", "value of register 'r1'"),
    (None, "closed"),
    ("01", "value of register 'r1': '01'"), ("01" * 9, "value of register"),
    ("x" * 16, "value of register"),
    ("0 " * 8, "value of register"), (["T05"] * 3, "did not answer"),
])
def test_an_invalid_answer_of_the_stub_is_reported(stub, answer, says):
    client, _asked = stub({"p1": answer}, 0.5)
    with pytest.raises(MachineError, match=says):
        client.read_register(ONE)


@pytest.mark.parametrize("answers, says", [
    ({"target.xml:0,7f0": "m"}, "for part of its 'target.xml'"),
    ({"target.xml:0,7f0": "x<t/>"}, "for part of its 'target.xml'"),
    ({"target.xml:0,7f0": 'l<xi:include href="a"/>' + '<xi:include href="a"/>' * 64},
     "more than 64 files"),
    ({"target.xml:0,7f0": 'l<xi:include href="a"/>', "a:0,7f0": "m"}, "for part of its 'a'"),
    *(({"target.xml:0,7f0": 'l<xi:include href="a"/>', "a:0,7f0": f"l<a><reg {reg}/></a>"}, says)
      for reg, says in (('name="r" bitsize="-8"', "-1 bytes"), ('name="r" bitsize="4"', "0 bytes"),
                        ('name="r" bitsize="99999999"', r"register 0 \(12499999 bytes\)"),
                        ('name="r" bitsize="64" regnum="-1"', "register -1"),
                        ('name="r"', "bitsize"), ('bitsize="64"', "name"))),
])
def test_an_invalid_target_description_is_refused(stub, answers, says):
    with pytest.raises(MachineError, match=says) as caught:
        client, _asked = stub({f"qXfer:features:read:{name}": text
                               for name, text in answers.items()})
        client.target_registers()
    assert "\n" not in str(caught.value)


def test_a_target_description_that_never_ends_is_given_up(stub, monkeypatch):
    monkeypatch.setattr(gdb_remote, "LIMIT", 1 << 30)
    with pytest.raises(MachineError, match="did not complete its target description"):
        stub({f"qXfer:features:read:target.xml:{n:x},7f0": "m<" for n in range(1 << 17)}, 0.2)


def test_a_missing_gdb_stub_is_reported(tmp_path):
    with pytest.raises(MachineError, match="no gdb stub"):
        GdbRemote(tmp_path / "nothing")
