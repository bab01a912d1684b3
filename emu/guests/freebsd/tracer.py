"""FreeBSD's own DTrace: the modules dtrace.ko, kinst.ko, fbt.ko and others."""

from emu.guest.tracer import Chunks, EnabledProbes, TracerCode, TracerPart

# sys/cddl/dev/kinst/trampoline.c: chunks are pages; PAGE_SIZE is 4096 on every architecture.
CHUNK_SIZE = 4096
MODULES = ("dtrace.ko", "fbt.ko", "kinst.ko", "sdt.ko", "systrace.ko", "profile.ko", "dtmalloc.ko",
           "fasttrap.ko")
AGGREGATES = ("count", "min", "max", "avg", "sum", "stddev", "quantize", "lquantize", "llquantize")
PARTS = {
    **dict.fromkeys(("dtrace_invop", "kinst_invop", "fbt_invop", "systrace_probe",
                     "sdt_dtrace_probe", "sdt_probe", "sdt_probe6", "profile_fire", "profile_tick",
                     "fasttrap_pid_probe", "fasttrap_return_probe", "dtmalloc_malloc_probe"),
                    TracerPart.PROVIDER),
    "dtrace_probe": TracerPart.PROBE,
    **dict.fromkeys((*(f"dtrace_aggregate_{name}" for name in AGGREGATES),
                     "dtrace_dif_emulate", "dtrace_aggregate", "dtrace_getpcstack",
                     "dtrace_getupcstack", "dtrace_getufpstack", "dtrace_speculation",
                     "dtrace_speculation_buffer", "dtrace_speculation_commit",
                     "dtrace_speculation_discard", "dtrace_store_by_ref",
                     "dtrace_action_breakpoint", "dtrace_action_chill", "dtrace_action_panic",
                     "dtrace_action_raise", "dtrace_action_stop", "dtrace_action_ustack"),
                    TracerPart.ACTION),
    "dtrace_probe_error": TracerPart.ERROR,
    **dict.fromkeys(("kinst_memcpy", "kinst_trampoline_populate"), TracerPart.COPY)}
# DTRACEACT_* and DTRACEAGG_* of sys/dtrace.h
ACTIONS = {
    1: "an expression", 2: "exit()", 3: "printf()", 4: "printa()", 5: "an action of dtrace(1)",
    6: "tracemem()", 7: "tracemem()", 8: "printm()", 0x101: "ustack()", 0x102: "jstack()",
    0x103: "usym()", 0x104: "umod()", 0x105: "uaddr()", 0x201: "stop()", 0x202: "raise()",
    0x203: "system()", 0x204: "freopen()", 0x401: "stack()", 0x402: "sym()", 0x403: "mod()",
    0x501: "breakpoint()", 0x502: "panic()", 0x503: "chill()", 0x601: "speculate()",
    0x602: "commit()", 0x603: "discard()",
    **{0x701 + number: f"{name}()" for number, name in enumerate(AGGREGATES)}}
ENABLED = EnabledProbes(
    "dtrace_probes", "struct dtrace_probe",
    ("dtpr_provider.dtpv_name", "dtpr_mod", "dtpr_func", "dtpr_name"),
    first="dtpr_ecb", next="dte_next", number="dte_epid", size="dte_size",
    predicate="dte_predicate", code="dtp_difo", buffer="dte_state.dts_buffer", data="dtb_tomax",
    offset="dtb_offset", action="dte_action", next_action="dta_next", kind="dta_kind",
    actions=ACTIONS,
    aggregates=frozenset(f"{name}()" for name in AGGREGATES))


def tracer(trampoline: int, frame_on_stack: bool = False, copies_at_once: bool = False,
           addresses: bool = True) -> TracerCode:
    """Return the description of DTrace on one architecture.

    :param trampoline: size of a trampoline of kinst, in bytes.
    """
    return TracerCode(
        MODULES, provider="kinst", functions="fbt", fires="dtrace_probe", last_own=3,
        handles="dtrace_invop_start", frame_on_stack=frame_on_stack,
        gates=frozenset({"sdt_probe", "sdt_probe6"}),
        in_programs=frozenset({"fasttrap_pid_probe", "fasttrap_return_probe"}), parts=PARTS,
        evaluates="dtrace_dif_emulate", reports="dtrace_probe_error",
        scratch=(("thread", "td_dtrace"), ("kdtrace_thread", "td_dtrace_scrpc")),
        chunks=Chunks("kinst_trampchunks", "struct trampchunk", "next.tqe_next", "addr",
                      CHUNK_SIZE, "free", trampoline), enabled=ENABLED,
        copies_at_once=copies_at_once, addresses=addresses)
