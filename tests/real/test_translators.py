"""Tests that translated arguments of network probes describe a local connection."""

from collections import Counter

import pytest

from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

TCP = """
tcp:::send { printf("%s %d %s %d %x %d %s\\n", args[2]->ip_saddr, args[4]->tcp_sport,
    args[2]->ip_daddr, args[4]->tcp_dport, args[4]->tcp_flags, args[2]->ip_plength,
    tcp_state_string[args[3]->tcps_state]); }
tcp:::state-change { printf("%s from %s\\n", tcp_state_string[args[3]->tcps_state],
    tcp_state_string[args[5]->tcps_state]); }
udp:::send { printf("udp %s %d %d\\n", args[3]->udps_laddr, args[4]->udp_dport,
    args[4]->udp_length); }
ip:::send { printf("ip %s %d %s %s\\n", args[3]->if_name, args[3]->if_local,
    args[4]->ipv4_protostr, args[4]->ipv4_saddr); }
"""
PATH = ["syn-sent", "syn-received", "established", "fin-wait-1", "close-wait", "fin-wait-2",
        "last-ack", "time-wait"]


@pytest.mark.parametrize("arch", ARCHES)
def test_translated_arguments_have_the_addresses_flags_and_states_of_a_connection(arch):
    kernel = real_kernel(arch)
    done = run("kdtrace", "-k", str(kernel.path), "-q", "-n", TCP, "-c", "$ check")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if ": ok" not in line]
    sent = [line.split() for line in lines if line.startswith("127.0.0.1 ")]
    (client,) = {one[1] for one in sent} - {"8080"}
    assert Counter(one[1] for one in sent).keys() == {client, "8080"}
    # The first packet has the flag SYN, the second packet SYN and ACK.
    assert sent[0][4] == "2" and sent[0][1] == client and sent[1][4] == "12"
    changes = [line.split()[0].removeprefix("state-") for line in lines if " from state-" in line]
    seen = [state for state in PATH if state in changes]
    assert seen == PATH and changes[-1] == "closed"
    ip = Counter(line for line in lines if line.startswith("ip "))
    assert ip["ip lo0 1 TCP 127.0.0.1"] == len(sent) and ip["ip lo0 1 UDP 127.0.0.1"] == 1
    (udp,) = (line.split() for line in lines if line.startswith("udp "))
    assert udp[1] == "127.0.0.1" and int(udp[3]) > 8


@pytest.mark.parametrize("arch", ARCHES)
def test_listings_show_translated_types_and_a_missing_translator_is_an_error(arch):
    kernel = real_kernel(arch)
    listed = run("kdtrace", "-k", str(kernel.path), "-l", "-v", "-n", "tcp:::state-change")
    assert "\t\targs[3]: tcpsinfo_t *\n" in listed.stdout
    assert "\t\tIdentifier Names: Private\n" in listed.stdout
    refused = run("kdtrace", "-k", str(kernel.path), "-n", "sdt:::m-get { trace(args[2]->x); }")
    assert refused.returncode == 1
    assert "translator for args[2] from struct mbuf * to mbufinfo_t * is not defined" in (
        refused.stderr)
