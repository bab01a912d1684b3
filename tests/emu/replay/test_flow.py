"""Tests of collecting, encoding and storing instruction flows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.machine.machine import Until
from emu.replay._pieces import PieceCoder, PieceDecoder
from emu.replay.flow import (
    ENTRY,
    PIECE,
    SKEW,
    TAKEN,
    THREAD,
    Executed,
    FlowFile,
    FlowWriter,
    Head,
    Tail,
    flow,
)
from emu.replay.inputs import Position, ReplayError
from emu.replay.player import Player
from emu.replay.recording import Recorder, Recording
from emu.replay.starts import BOOT
from emu.unicorn._flow import Flow
from emu.unicorn._steps import Steps
from tests.emu.replay.test_recording import started, use


@pytest.fixture
def recorded(image, tmp_path):
    machine, path = started(image), tmp_path / "file.rec"
    with Recorder(machine, path, BOOT, "all of it"):
        use(machine)
    return path, machine.digest()


def addresses(machine, entries):
    """Return the address of every instruction of a flow."""
    found = []
    for value, count, kind in ENTRY.iter_unpack(entries):
        if kind == PIECE:
            for _ in range(count):
                found.append(value)
                room = 4096 - value % 4096
                code = machine.read(value, min(15, room))
                value += machine.arch.instruction_length(code)
    return found


def test_a_flow_matches_single_stepping(image, recorded):
    path, digest = recorded
    played = Player(Recording(path), started(image))
    entries = b"".join(flow(played, played.recording.last))
    played.give()
    assert played.machine.digest() == digest
    stepped, slow = [], Player(Recording(path), started(image))
    while not slow.at_end:
        slow.give()
        if slow.at_end:
            break
        stepped.append(slow.machine.pc)
        slow.run(Until(instructions=slow.position.instructions + 1))
    assert addresses(played.machine, entries) == stepped
    skews = [value for value, _count, kind in ENTRY.iter_unpack(entries) if kind == SKEW]
    assert skews == sorted(set(skews))


def test_a_flow_collected_in_parts_is_the_same(image, recorded):
    whole, parts = (Player(Recording(recorded[0]), started(image)) for _ in range(2))
    entries = b"".join(flow(whole, whole.recording.last))
    last, cut = parts.recording.last.instructions, b""
    for part in (last // 7, last // 3, last // 3 + 1, last):
        end = parts.recording.last if part == last else part
        cut += b"".join(flow(parts, end))
    assert addresses(whole.machine, entries) == addresses(parts.machine, cut)


def test_a_flow_collector_can_be_closed_twice_but_not_reinitialized(fresh):
    collected = Flow(fresh.engine, lambda entries: None)
    with pytest.raises(RuntimeError):
        collected.__init__(fresh.engine, print)
    collected.close()
    collected.close()
    with pytest.raises(ValueError, match="not RAM"):
        Flow(fresh.engine, print, [1 << 60])
    with pytest.raises(RuntimeError):
        Flow.__new__(Flow).flush()
    with pytest.raises(RuntimeError):
        Steps.__new__(Steps).flush()
    with pytest.raises(ValueError, match="at most 64"):
        Steps(fresh.engine, print, range(65))


def test_an_error_of_the_flow_callback_is_raised_by_flush(fresh):
    def sink(entries):
        raise KeyError("the sink is full")

    collected = Flow(fresh.engine, sink)
    fresh.run(Until(instructions=1000))
    with pytest.raises(KeyError, match="the sink is full"):
        collected.flush()


# -- encoding --------------------------------------------------------------------------------------

ENTRIES = st.lists(st.one_of(
    st.tuples(st.sampled_from([0x1000, 0x1010, 0x2000, 2**64 - 4, 5]), st.integers(1, 3),
              st.just(PIECE)),
    st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 1 << 20), st.just(PIECE)),
    st.tuples(st.integers(0, 2**64 - 1), st.just(0), st.sampled_from([THREAD, SKEW])),
    st.tuples(st.just(0), st.just(0), st.just(TAKEN)),
), max_size=60)


def slow_decode(chunks):
    """Decode chunks in plain Python, following the format in ``emu/replay/_pieces.pyx``."""
    pieces, after_one, after_two, state, skew = [], {}, {}, [0, 0], 0

    def place():
        return (state[0] << 32 | state[1]) * 0x9E3779B97F4A7C15 % 2**64 >> 46

    def varint(data):
        value = shift = 0
        while True:
            byte = data.pop(0)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def unzigzag(value):
        return value >> 1 ^ -(value & 1)

    def follow(piece):
        after_two[place()] = piece
        if state[1]:
            after_one[state[1]] = piece
        state[:] = [state[1], piece + 1]
        return (*pieces[piece], PIECE)

    for chunk in chunks:
        data, out = list(chunk), []
        while True:
            for _ in range(varint(data)):
                out.append(follow(after_two[place()]))
            op = varint(data)
            if op == 0:
                break
            if op == 1:
                before = pieces[state[1] - 1][0] if state[1] else 0
                pieces.append(((before + unzigzag(varint(data))) % 2**64, varint(data)))
                out.append(follow(len(pieces) - 1))
            elif op == 2:
                out.append((varint(data), 0, THREAD))
            elif op == 3:
                skew = (skew + unzigzag(varint(data))) % 2**64
                out.append((skew, 0, SKEW))
            elif op == 4:
                out.append((0, 0, TAKEN))
            else:
                out.append(follow(after_one[state[1]] if op == 5 else op - 6))
        assert not data
        yield out


@given(st.lists(ENTRIES, max_size=5))
@settings(max_examples=300, deadline=None)
def test_encoded_entries_are_decoded_by_native_code_and_by_python(chunks):
    coder, decoder = PieceCoder(), PieceDecoder()
    coded = [coder.code(b"".join(ENTRY.pack(*e) for e in chunk)) for chunk in chunks]
    assert [list(ENTRY.iter_unpack(decoder.decode(c, 1000))) for c in coded] == chunks
    assert list(slow_decode(coded)) == chunks
    assert coder.instructions == sum(c for chunk in chunks for _v, c, k in chunk if k == PIECE)


@given(st.lists(st.binary(max_size=60), max_size=4))
@settings(max_examples=500, deadline=None)
def test_arbitrary_bytes_are_decoded_within_bounds_or_refused(chunks):
    decoder = PieceDecoder()
    for chunk in chunks:
        try:
            found = decoder.decode(chunk, 10_000)
        except ValueError:
            continue
        assert len(found) % ENTRY.size == 0 and len(found) <= 10_000 * ENTRY.size


def test_a_chunk_with_too_many_entries_is_refused():
    coder = PieceCoder()
    chunk = coder.code(ENTRY.pack(16, 1, PIECE) * 1000)
    assert len(chunk) < 30
    with pytest.raises(ValueError, match="too many entries"):
        PieceDecoder().decode(chunk, 900)
    assert len(PieceDecoder().decode(chunk, 1001)) == 1000 * ENTRY.size


@pytest.mark.parametrize("entries", [b"x", ENTRY.pack(1, 0, PIECE), ENTRY.pack(1, 1, 77)])
def test_invalid_entries_are_not_encoded(entries):
    with pytest.raises(ValueError):
        PieceCoder().code(entries)


# -- files -----------------------------------------------------------------------------------------

HEAD = Head("amd64", "abc-123", Position(5, 7), 0x1000, ((16, None), (32, 48)))
PIECES = [ENTRY.pack(0x1000, 2, PIECE) * 3,
          [Executed(5, 0x1000, {"rax": 3}, ((0x2000, 0x20, b"ab"), (None, 0x30, b"c")))],
          ENTRY.pack(9, 0, THREAD) + ENTRY.pack(0x1004, 1, PIECE)]
TAIL = Tail(Position(12, 14), {0x1000: "init"})


def written(path):
    writer = FlowWriter(path, HEAD)
    for piece in PIECES:
        writer.write(piece)
    writer.end(TAIL)
    return path


def test_a_flow_file_is_read_back_as_written(tmp_path):
    found = FlowFile(written(tmp_path / "a.trace"))
    assert (found.head, found.tail, found.problem) == (HEAD, TAIL, "")
    assert list(found.pieces()) == PIECES


def test_a_truncated_flow_file_yields_its_complete_pieces(tmp_path):
    content = written(tmp_path / "a.trace").read_bytes()
    cut, counts = tmp_path / "b.trace", []
    for length in range(len(content)):
        cut.write_bytes(content[:length])
        try:
            found = FlowFile(cut)
        except ReplayError as error:
            assert str(cut) in str(error)
            continue
        assert found.problem and found.tail is None
        pieces = list(found.pieces())
        assert pieces == PIECES[: len(pieces)]
        counts.append(len(pieces))
    assert counts == sorted(counts) and set(counts) == set(range(len(PIECES) + 1))


@given(place=st.integers(0, 10_000), byte=st.integers(1, 255))
@settings(max_examples=200, deadline=None)
def test_a_damaged_flow_file_is_reported_in_one_line(tmp_path_factory, place, byte):
    path = tmp_path_factory.mktemp("damaged") / "a.trace"
    content = bytearray(written(path).read_bytes())
    content[place % len(content)] ^= byte
    path.write_bytes(content)
    try:
        found = FlowFile(path)
        pieces = list(found.pieces())
    except ReplayError as error:
        assert "\n" not in str(error)
        return
    assert found.problem and pieces == PIECES[: len(pieces)]


def test_a_recording_is_not_accepted_as_an_instruction_trace(recorded):
    with pytest.raises(ReplayError, match="not an instruction trace"):
        FlowFile(recorded[0])
