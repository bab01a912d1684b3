"""Tests of the state that the checker keeps between the programs of one pipeline."""

import pytest

from dtrace.d.language.errors import DError
from tests.dtrace.programs import compiled, pipeline

GOOD = "inline int one = 1; BEGIN { trace(one); }"
TRANSLATORS = "struct s0 { int m; }; translator struct s0 < int *a > { m = *a; };" + "".join(
    f"struct s{n} {{ int m; }}; translator struct s{n} < int *a > "
    f"{{ m = xlate<struct s{n - 1}>(a).m; }};" for n in range(1, 70))


@pytest.mark.parametrize("refused", [
    "inline int a0 = pid;" + "".join(
        f"inline int a{n} = a{n - 1} + a{n - 1};" for n in range(1, 26)) + "BEGIN { trace(a25); }",
    "inline int a0 = pid;" + "".join(
        f"inline int a{n} = a{n - 1};" for n in range(1, 70)) + "BEGIN { trace(a69); }",
    TRANSLATORS + "BEGIN { trace(xlate<struct s69>((int *)arg0).m); }",
], ids=["too many", "inlines too deep", "translators too deep"])
def test_a_refused_expansion_does_not_count_for_the_next_program(refused):
    found = pipeline()
    with pytest.raises(DError, match=r"more than|nested too deep"):
        compiled(found, refused)
    assert compiled(found, GOOD)


@pytest.mark.parametrize("refused", [
    "inline int f[int x] = nosuch + x; BEGIN { trace(f[1]); }",
    "struct s { int m; }; translator struct s < int x > { m = nosuch + x; }; BEGIN { }",
])
def test_a_parameter_is_unknown_after_its_definition_was_refused(refused):
    found = pipeline()
    with pytest.raises(DError, match="nosuch"):
        compiled(found, refused)
    with pytest.raises(DError, match="failed to resolve x"):
        compiled(found, "BEGIN { trace(x); }")
