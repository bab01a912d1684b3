"""Output of a control flow in Perfetto's trace format (``perfetto/trace/trace_packet.proto``).

Threads are tracks; calls and inline copies are slices; interrupts are slices in a category of their
own; marks are instants. Timestamps are virtual nanoseconds.
"""

from collections.abc import Mapping
from typing import IO, Any

from emu.host.extras import need

SEQUENCE = 1
PROCESS = 1  # uuid of the kernel's track; the uuids of threads are higher
CLOCK_BOOTTIME = 6  # BuiltinClock value of Perfetto's default clock


class PerfettoTrace:
    """Listener of a ``Walk`` that writes trace packets.

    :param names: names of threads by address; may be completed while the trace is written.
    :raises KinstError: if the perfetto package is not installed.
    """

    def __init__(self, file: IO[bytes], title: str, names: Mapping[int, str],
                 marks: list[str]) -> None:
        need("perfetto", "--as perfetto")
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

        self._protos, self._file = protos, file
        self._names, self._marks = names, marks
        self._tracks: dict[int, int] = {}
        self._iids: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._batch = protos.Trace()
        packet = self._packet()
        packet.sequence_flags = protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        packet.track_descriptor.uuid = PROCESS
        packet.track_descriptor.process.pid = 1
        packet.track_descriptor.process.process_name = title

    def _packet(self) -> Any:
        if len(self._batch.packet) >= 4096:
            self.flush()
        packet = self._batch.packet.add()
        packet.trusted_packet_sequence_id = SEQUENCE
        return packet

    def flush(self) -> None:
        """Write the collected packets to the file."""
        self._file.write(self._batch.SerializeToString())
        self._batch.Clear()

    def finish(self) -> None:
        """Write all thread names that are known by now, and the remaining packets."""
        for thread, uuid in self._tracks.items():
            self._describe(thread, uuid)
        self.flush()

    def _describe(self, thread: int, uuid: int) -> None:
        packet = self._packet()
        descriptor = packet.track_descriptor
        descriptor.uuid, descriptor.parent_uuid = uuid, PROCESS
        descriptor.thread.pid, descriptor.thread.tid = 1, uuid
        descriptor.thread.thread_name = self._names.get(thread, "") or (
            f"{thread:#x}" if thread else "boot")

    def _track(self, thread: int) -> int:
        uuid = self._tracks.get(thread)
        if uuid is None:
            uuid = self._tracks[thread] = len(self._tracks) + PROCESS + 1
            self._describe(thread, uuid)
        return uuid

    def _event(self, thread: int, time: int, kind: int) -> Any:
        track = self._track(thread)
        packet = self._packet()
        packet.timestamp = time
        packet.timestamp_clock_id = CLOCK_BOOTTIME
        packet.sequence_flags = self._protos.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet

    def _named(self, packet: Any, name: str, category: str) -> None:
        iid = self._iids.get(name)
        if iid is None:
            iid = self._iids[name] = len(self._iids) + 1
            packet.interned_data.event_names.add(iid=iid, name=name)
        packet.track_event.name_iid = iid
        number = self._categories.get(category)
        if number is None:
            number = self._categories[category] = len(self._categories) + 1
            packet.interned_data.event_categories.add(iid=number, name=category)
        packet.track_event.category_iids.append(number)

    def enter(self, thread: int, position: int, time: int, name: str, how: str,
              site: int | None) -> None:
        """Begin the slice of a function."""
        packet = self._event(thread, time, self._protos.TrackEvent.TYPE_SLICE_BEGIN)
        self._named(packet, name, how)

    def leave(self, thread: int, position: int, time: int) -> None:
        """End the innermost slice of a thread."""
        self._event(thread, time, self._protos.TrackEvent.TYPE_SLICE_END)

    def ran(self, thread: int, count: int) -> None:
        """Ignore the number of executed instructions."""
        return None

    def mark(self, thread: int, position: int, time: int, number: int) -> None:
        """Write an instant event for a marked instruction."""
        packet = self._event(thread, time, self._protos.TrackEvent.TYPE_INSTANT)
        self._named(packet, self._marks[number], "probe")
        packet.track_event.debug_annotations.add(name="position", uint_value=position)

    def named(self, thread: int) -> None:
        """Assign the track of thread 0 to a thread whose address is now known."""
        if 0 in self._tracks:
            self._tracks[thread] = self._tracks.pop(0)
