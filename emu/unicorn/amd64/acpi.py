"""ACPI tables that the GENERIC kernel requires (ACPI 6.5, chapter 5): CPUs and one I/O APIC."""

import struct

from emu.unicorn.amd64.aml import (
    BUSES,
    END_TAG,
    PORTS,
    buffer,
    device,
    eisa_id,
    integer,
    interrupt,
    name,
    package,
    ports,
    scope,
    window,
)

RSDP_BASE, TABLES_BASE = 0xF0000, 0xF0100
LAPIC_BASE, IOAPIC_BASE = 0xFEE00000, 0xFEC00000
UART_PORT, UART_IRQ = 0x3F8, 4
SECOND_PORT, SECOND_IRQ = 0x2F8, 3
CLOCK_PORT, CLOCK_IRQ = 0x70, 8
PCI_PORTS, PCI_IRQ = 0xC000, 16  # I/O port base and interrupt of the first PCI device
PM1_EVENT, PM1_CONTROL, PM_TIMER, SCI_IRQ = 0x600, 0x604, 0x608, 9
HEADER = struct.Struct("<4sIBB6s8sI4sI")


def ioapic_id(cpus: int) -> int:
    """Return the I/O APIC's ID, which follows the IDs of the local APICs."""
    return cpus


def _table(signature: bytes, revision: int, body: bytes) -> bytes:
    length = HEADER.size + len(body)
    head = HEADER.pack(signature, length, revision, 0, b"KINST ", b"KINSTEMU", 1, b"KNST", 1)
    raw = bytearray(head + body)
    raw[9] = -sum(raw) & 0xFF
    return bytes(raw)


def _fadt(facs: int, dsdt: int) -> bytes:
    body = bytearray(116 - HEADER.size)

    def put(offset: int, form: str, *values: int) -> None:
        struct.pack_into("<" + form, body, offset - HEADER.size, *values)

    put(36, "II", facs, dsdt)
    put(46, "H", SCI_IRQ)
    put(56, "I", PM1_EVENT)
    put(64, "I", PM1_CONTROL)
    put(76, "I", PM_TIMER)
    put(88, "BBBB", 4, 2, 0, 4)  # lengths in bytes: PM1 event, PM1 control, PM2, timer
    put(96, "HH", 0xFFFF, 0xFFFF)  # latencies: C2 and C3 are not supported
    put(109, "H", 1 << 1)  # boot architecture flags: an 8042, no other legacy devices
    put(112, "I", 1 << 0 | 1 << 2 | 1 << 4)  # flags: WBINVD, C1, power button by control method
    return _table(b"FACP", 1, bytes(body))


def _madt(cpus: int) -> bytes:
    body = struct.pack("<II", LAPIC_BASE, 0)
    for i in range(cpus):
        body += struct.pack("<BBBBI", 0, 8, i, i, 1)  # local APIC: processor ID, APIC ID, enabled
    body += struct.pack("<BBBBII", 1, 12, ioapic_id(cpus), 0, IOAPIC_BASE, 0)
    body += struct.pack("<BBBBIH", 2, 10, 0, 0, 2, 0)  # IRQ 0 is connected to pin 2 of the I/O APIC
    return _table(b"APIC", 1, body)


def _pci(devices: int) -> bytes:
    """Encode the PCI host bridge with its address windows and interrupt routing (6.2.13)."""
    routes = package([
        package([integer((i + 1) << 16 | 0xFFFF), integer(0), integer(0), integer(PCI_IRQ + i)])
        for i in range(devices)])
    passed = (window(BUSES, 0, 0) + ports(0xCF8, 8) + window(PORTS, PCI_PORTS, 0xFFFF) + END_TAG)
    return device(
        "PCI0", name("_HID", eisa_id("PNP0A03")), name("_UID", integer(0)),
        name("_BBN", integer(0)), name("_CRS", buffer(passed)), name("_PRT", routes))


def _port(number: int, base: int, irq: int) -> bytes:
    """Encode a serial port."""
    return device(
        f"COM{number}", name("_HID", eisa_id("PNP0501")), name("_UID", integer(number)),
        name("_CRS", buffer(ports(base, 8) + interrupt(irq) + END_TAG)))


def _definitions(devices: int, clock: bool, serial: bool) -> bytes:
    """Encode the S5 power-off state (SLP_TYP 0, 7.4.2.6) and the devices.

    :param clock: whether to include the real-time clock.
    :param serial: whether to include the second serial port.
    """
    more = [_pci(devices)] if devices else []
    if clock:
        more.append(device(
            "RTC0", name("_HID", eisa_id("PNP0B00")),
            name("_CRS", buffer(ports(CLOCK_PORT, 2) + interrupt(CLOCK_IRQ) + END_TAG))))
    if serial:
        more.append(_port(2, SECOND_PORT, SECOND_IRQ))
    return name("_S5_", package([integer(0)] * 4)) + scope(
        "_SB_", _port(1, UART_PORT, UART_IRQ), *more)


def tables(programs: bool = False, devices: int = 0, cpus: int = 1,
           clock: bool = False, serial: bool = False) -> bytes:
    """Return the contents of the memory area at RSDP_BASE, which contains all ACPI tables.

    :param programs: whether the guest has a disk and so runs programs, which need the devices in
        the DSDT.  Without programs the tables never change, so that old recordings stay valid.
    :param devices: number of devices on the PCI bus, without the host bridge.
    :param cpus: number of processors.
    :param clock: whether the guest is to find the real-time clock.
    :param serial: whether there is a second serial port.
    """
    area = bytearray(0x1000)
    next_free = TABLES_BASE

    def place(data: bytes, align: int = 16) -> int:
        nonlocal next_free
        next_free = (next_free + align - 1) & -align
        area[next_free - RSDP_BASE : next_free - RSDP_BASE + len(data)] = data
        address, next_free = next_free, next_free + len(data)
        return address

    facs = place(struct.pack("<4sI", b"FACS", 64) + bytes(56), 64)
    dsdt = place(_table(b"DSDT", 1, _definitions(devices, clock, serial)
                        if programs or devices or clock or serial else b""))
    fadt = place(_fadt(facs, dsdt))
    madt = place(_madt(cpus))
    rsdt = place(_table(b"RSDT", 1, struct.pack("<II", fadt, madt)))
    rsdp = bytearray(struct.pack("<8sB6sBI", b"RSD PTR ", 0, b"KINST ", 0, rsdt))
    rsdp[8] = -sum(rsdp) & 0xFF
    area[: len(rsdp)] = rsdp
    return bytes(area)
