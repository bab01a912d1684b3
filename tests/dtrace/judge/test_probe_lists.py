"""Tests of comparing lists of probes."""

import pytest

from dtrace.judge.probe_lists import compare, parse, parse_plain

THEIRS = """
 fbt kernel malloc,entry return
 fbt kernel trap,entry
 syscall freebsd fork,entry
=Argument Types
=None
 syscall freebsd fork,return
=Argument Types
=args[0]: ssize_t
 dtmalloc kinst,malloc
!dtrace: a message
fbt_getargdesc(1213): Unknown function!
"""
OURS = """   ID   PROVIDER            MODULE                          FUNCTION NAME
  100        fbt            kernel                            malloc entry
  101        fbt            kernel                            malloc return
  102        fbt            kernel                           cpu_throw entry
  103    syscall           freebsd                              fork entry

\tArgument Types
\t\tNone

  104    syscall           freebsd                              fork return

\tArgument Types
\t\targs[0]: int
"""


class Facts:
    """A kernel in which ``assembly`` are functions without debug data."""

    def __init__(self, assembly=(), why=None, modules=()):
        self.assembly, self.why, self.modules = assembly, why or {}, modules

    def is_module(self, name):
        return name in self.modules

    def in_a_module(self, word):
        return word in self.modules

    def is_alias(self, function):
        return function == "alias"

    def several(self, function):
        return function == "twice"

    def begins_refused(self, _function):
        return False

    def begins_with_loop(self, function):
        return function == "loop"

    def why_not(self, probe):
        return self.why.get(probe, "unknown")

    def is_assembly(self, function):
        return function in self.assembly

    def only_jumps_out(self, _function):
        return False

    def returns_before_frame(self, _function):
        return False

    def contains(self, _function, _mnemonic):
        return False

    def mnemonic(self, _function, offset):
        return "adrp" if offset == 8 else "mov"

    def same_type(self, one, other):
        return {one, other} == {"int", "pid_t"}

    def is_known(self, _call):
        return True


def test_both_forms_of_a_list_are_read():
    theirs, ours = parse(THEIRS), parse_plain(OURS)
    assert theirs[("fbt", "kernel", "malloc", "return")] == [()]
    assert theirs[("dtmalloc", "kinst", "malloc")] == [()]
    assert theirs[("syscall", "freebsd", "fork", "return")] == [
        ("Argument Types", "args[0]: ssize_t")]
    assert ours[("syscall", "freebsd", "fork", "return")] == [("Argument Types", "args[0]: int")]


@pytest.mark.parametrize("text", [" no comma here", "=a detail without a probe"])
def test_what_is_not_a_list_is_refused(text):
    with pytest.raises(ValueError):
        parse(text)


def test_a_difference_needs_a_reason_that_the_kernel_confirms():
    facts = Facts(["cpu_throw"], {("fbt", "kernel", "trap", "entry"): "trap is excluded: ..."},
                  ["kinst"])
    found = compare(parse(THEIRS), parse_plain(OURS), facts)
    assert (found["fbt"].theirs, found["fbt"].ours, found["fbt"].equal) == (3, 3, 2)
    assert [one.unknown for one in found.values()] == [[], [], []]
    assert {what for one in found.values() for what, _why in one.explained} == {
        "only dtrace(1)", "only kdtrace", "details"}
    unknown = [line for one in compare(parse(THEIRS), parse_plain(OURS), Facts()).values()
               for line in one.unknown]
    assert unknown == ["fbt kernel trap entry: only dtrace(1) lists it",
                       "fbt kernel cpu_throw entry: only kdtrace lists it",
                       "dtmalloc kinst malloc: only dtrace(1) lists it"]


def test_an_alias_explains_a_missing_name_but_not_a_missing_place():
    facts = Facts(why=dict.fromkeys(
        [("fbt", "kernel", name, "entry") for name in ("alias", "other")], ""))
    lists = {("fbt", "kernel", name, "entry"): [()] for name in ("alias", "other")}
    found = compare(lists, {}, facts)["fbt"]
    assert found.unknown == ["fbt kernel other entry: only dtrace(1) lists it"]
    probe = ("fbt", "kernel", "alias", "entry")
    assert compare({probe: [(), ()]}, {probe: [()]}, facts)["fbt"].unknown


def test_modules_explain_only_their_own_probes():
    facts = Facts(modules=["kinst", "systrace", "freebsd", "dtnfscl", "profile"])
    lists = {probe: [()] for probe in (
        ("fbt", "kinst", "kinst_invop", "entry"), ("nfscl", "nfs4", "null", "start"),
        ("syscall", "freebsd", "read", "entry"), ("profile", "profile-97"))}
    unknown = [line for one in compare(lists, {}, facts).values() for line in one.unknown]
    assert unknown == ["syscall freebsd read entry: only dtrace(1) lists it",
                       "profile profile-97: only dtrace(1) lists it"]


def test_other_details_are_never_explained_by_types():
    theirs = {("syscall", "freebsd", "x", "entry"): [("Data Semantics: Private", "args[0]: int")]}
    ours = {("syscall", "freebsd", "x", "entry"): [("Data Semantics: Stable", "args[0]: pid_t")]}
    assert compare(theirs, ours, Facts())["syscall"].unknown
    ours = {("syscall", "freebsd", "x", "entry"): [("Data Semantics: Private", "args[0]: pid_t")]}
    assert compare(theirs, ours, Facts())["syscall"].explained


def test_refused_instructions_are_known_by_their_mnemonics():
    ours = {("kinst", "kernel", "f", "8"): [()], ("kinst", "kernel", "f", "12"): [()]}
    found = compare({}, ours, Facts())["kinst"]
    assert found.unknown == ["kinst kernel f 12: only kdtrace lists it"]
    assert sum(found.explained.values()) == 1


def test_a_missing_place_of_a_name_is_a_difference():
    probe = ("fbt", "kernel", "f", "entry")
    found = compare({probe: [(), ()]}, {probe: [()]}, Facts())["fbt"]
    assert (found.theirs, found.ours, found.equal, len(found.unknown)) == (2, 1, 1, 1)
