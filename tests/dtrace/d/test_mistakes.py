"""Tests that mistakes in D programs are reported with the error tags of dtrace(1)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrace.d.language.errors import DError
from tests.dtrace.programs import compiled, pipeline, run, tag


@pytest.mark.parametrize("actions, expected", [
    ("trace(1.5)", "D_SYNTAX"), ('trace("a', "D_STR_NL"), ("trace('')", "D_CHR_NULL"),
    ("trace('abcdefghi')", "D_CHR_OFLOW"), ("trace(08)", "D_INT_DIGIT"),
    ("trace(0x10000000000000000)", "D_INT_OFLOW"), ("trace($nosuch)", "D_MACRO_UNDEF"),
    ("trace($7)", "D_MACRO_UNDEF"), ("trace(nosuch)", "D_IDENT_UNDEF"),
    ("trace(self->nosuch)", "D_VAR_UNDEF"), ("nosuch()", "D_FUNC_UNDEF"),
    ("pid()", "D_FUNC_IDKIND"),
    ("pid = 1", "D_OP_WRITE"), ("1 = 2", "D_OP_LVAL"), ("trace(1 / 0)", "D_DIV_ZERO"),
    ("x = 1; x %= 0", "D_DIV_ZERO"), ("trace(&pid)", "D_ADDROF_VAR"),
    ("trace(&1)", "D_ADDROF_LVAL"), ("trace(*1)", "D_DEREF_NONPTR"),
    ("trace(*(void *)1)", "D_DEREF_VOID"), ("trace(strlen())", "D_PROTO_LEN"),
    ("trace(strlen(16))", "D_PROTO_ARG"), ("x[1] = 2; x[1, 2] = 3", "D_PROTO_LEN"),
    ('x[1] = 2; trace(x["a"])', "D_PROTO_ARG"), ('x = 1; x = "a"', "D_OP_INCOMPAT"),
    ('trace("a" + "b")', "D_OP_INCOMPAT"), ('trace("a" & 1)', "D_OP_INT"),
    ('trace("a" * 2)', "D_OP_ARITH"), ('trace(!"a")', "D_OP_SCALAR"),
    ("x = 1; trace(x.y)", "D_OP_SOU"), ("x = 1; trace(x->y)", "D_OP_PTR"),
    ("trace(1, 2)", "D_PROTO_LEN"), ("trace((void)1)", "D_TRACE_VOID"),
    ("@a = count(); trace(@a)", "D_TRACE_AGG"), ("@a = 1", "D_AGG_FUNC"),
    ("@a = count(); @a = sum(1)", "D_AGG_REDEF"), ("@a = count(); @a", "D_AGG_NULL"),
    ('@a = sum("a")', "D_AGG_SCALAR"), ("@a = lquantize(1, x, 3)", "D_IDENT_UNDEF"),
    ("@a = lquantize(1, pid, 3)", "D_LQUANT_BASETYPE"),
    ("@a = lquantize(1, 3, 1)", "D_LQUANT_MISMATCH"),
    ("@a = lquantize(1, 0, 10, 0)", "D_LQUANT_STEPTYPE"),
    ("@a = lquantize(1, 0, 10, 20)", "D_LQUANT_STEPLARGE"),
    ("@a = lquantize(1, 0, 10); @a = lquantize(1, 0, 20)", "D_LQUANT_MATCHLIM"),
    ("@a = llquantize(1, 1, 0, 3, 10)", "D_LLQUANT_FACTORSMALL"),
    ("@a = llquantize(1, 10, 0, 3, 15)", "D_LLQUANT_FACTOREVEN"),
    ("@a = llquantize(1, 10, 0, 30, 10)", "D_LLQUANT_MAGTOOBIG"),
    ("clear(1)", "D_CLEAR_AGGARG"), ("clear()", "D_CLEAR_PROTO"),
    ("@a = count(); trunc(@a, 1, 2)", "D_TRUNC_PROTO"),
    ("@a = count(); normalize(@a)", "D_NORMALIZE_PROTO"), ("printa(1)", "D_PRINTA_AGGARG"),
    ("@a[1] = count(); @b = count(); printa(@a, @b)", "D_PRINTA_AGGKEY"),
    ('printf("%d")', "D_PRINTF_ARG_PROTO"), ('printf("%d", "a")', "D_PRINTF_ARG_TYPE"),
    ('printf("x", 1)', "D_PRINTF_ARG_EXTRA"), ('printf("%*d", "a", 1)', "D_PRINTF_DYN_TYPE"),
    ('printf("%@d", 1)', "D_PRINTF_AGG_CONV"), ("printf(pid)", "D_PRINTF_ARG_FMT"),
    ('printf("%Z")', "D_SYNTAX"), ('printf("")', "D_PRINTF_FMT_EMPTY"),
    ("tracemem(1, pid)", "D_TRACEMEM_SIZE"), ("tracemem(0, 1, 2, 3)", "D_TRACEMEM_ARGS"),
    ("stack(0)", "D_STACK_SIZE"), ("stack(1, 2)", "D_STACK_PROTO"),
    ("ustack(-1)", "D_USTACK_FRAMES"), ("x = stack()", "D_CG_EXPR"),
    ("commit(1); commit(1)", "D_COMM_COMM"), ("trace(1); commit(1)", "D_COMM_DREC"),
    ("commit(1); trace(1)", "D_DREC_COMM"), ("commit(1); @a = count()", "D_AGG_COMM"),
    ("speculate(1); speculate(1)", "D_SPEC_SPEC"), ("trace(1); speculate(1)", "D_SPEC_DREC"),
    ("speculate(1); @a = count()", "D_AGG_SPEC"), ("speculate(1); exit(0)", "D_EXIT_SPEC"),
    ("speculate(1); panic()", "D_ACT_SPEC"), ("trace(sizeof(void))", "D_SIZEOF_TYPE"),
    ("trace(offsetof(int, x))", "D_OFFSETOF_TYPE"), ("trace((string)(void)1)", "D_CAST_INVAL"),
    ("trace(1 ? 1 : 2, 3)", "D_PROTO_LEN"), ("x = 1 ? trace(1) : trace(2)", "D_OP_INCOMPAT"),
    ("this->a[1] = 2", "D_ARR_LOCAL"), ("@a[1][2] = count()", "D_AGG_MDIM"),
    ("x[(void)1] = 2", "D_KEY_TYPE"), ("trace(args[0])", "D_ARGS_IDX"),
    ("trace(uregs[-1])", "D_REGS_IDX"), ("freopen(\".\")", "D_FREOPEN_INVALID"),
    ("trace(sizeof (`))", "D_IDENT_UNDEF"), ("trace((pid0`int)0)", "D_SYNTAX"),
    ("trace(xlate<struct x>(1))", "D_XLATE_NONE"), ("if (1) trace(nosuch);", "D_IDENT_UNDEF"),
])
def test_a_mistake_in_a_clause_gets_the_right_error_tag(actions, expected):
    assert tag("BEGIN{" + actions + "}") == expected


@pytest.mark.parametrize("program, expected", [
    ("nosuch:::probe", "D_PDESC_ZERO"), ("a:b:c:d:e", "D_PDESC_INVAL"), ("77777", "D_PDESC_INVAL"),
    ('BEGIN/"a"/{}', "D_PRED_SCALAR"), ("BEGIN{", "D_SYNTAX"), ("BEGIN{}}", "D_SYNTAX"),
    ("BEGIN/1/", "D_SYNTAX"), ("/* a /* b */", "D_SYNTAX"),
    ("tick-1ns{}", "D_PDESC_ZERO"), ("#pragma D nosuch\nBEGIN", "D_PRAGMA_INVAL"),
    ("#nosuch\nBEGIN", "D_PRAGCTL_INVAL"), ("#pragma D option nosuch\nBEGIN", "D_PRAGMA_OPTSET"),
    ("#pragma D option\nBEGIN", "D_PRAGMA_MALFORM"), ("#error no\nBEGIN", "D_PRAGERR"),
    ("#pragma D attributes Stable/Stable/Common nosuch\nBEGIN", "D_PRAGMA_UNUSED"),
    ("#pragma D depends_on provider nosuch\nBEGIN", "D_PRAGMA_DEPEND"),
    ("", "D_EMPTY"),
])
def test_a_mistake_in_a_program_gets_the_right_error_tag(program, expected):
    assert tag(program) == expected


@pytest.mark.parametrize("declaration, expected", [
    ("int int x;", "D_DECL_COMBO"), ("long char x;", "D_DECL_CHARATTR"),
    ("unsigned void x;", "D_DECL_VOIDATTR"), ("unsigned struct s x;", "D_DECL_SIGNINT"),
    ("void x;", "D_DECL_VOIDOBJ"), ("int x[];", "D_DECL_ARRNULL"), ("int x[-1];", "D_DECL_ARRSUB"),
    ("int x; char x;", "D_DECL_IDRED"), ("int pid;", "D_DECL_IDRED"),
    ("struct a { int x; }; struct a { int x; };", "D_DECL_TYPERED"),
    ("struct a { struct a x; };", "D_DECL_INCOMPLETE"),
    ("struct a { int : 40; };", "D_DECL_BFSIZE"),
    ("struct a { float x : 1; };", "D_DECL_BFTYPE"), ("struct a { int x : y; };", "D_DECL_BFCONST"),
    ("enum e { A = 0x80000000 };", "D_DECL_ENOFLOW"), ("enum e { A = x };", "D_DECL_ENCONST"),
    ("static int x;", "D_DECL_BADCLASS"), ("self this int x;", "D_DECL_CLASS"),
    ("int f(void x);", "D_DECL_PROTO_NAME"), ("int f(int, void);", "D_DECL_PROTO_VOID"),
    ("int x[void];", "D_DECL_PROTO_TYPE"), ("int x[int, ...];", "D_DECL_PROTO_VARARGS"),
    ("this int x[int];", "D_DECL_LOCASSC"), ("int;", "D_DECL_USELESS"),
    ("inline int pid = 1;", "D_DECL_IDRED"), ('inline int x = "a";', "D_OP_INCOMPAT"),
    ("translator int < int x > { };", "D_XLATE_SOU"),
    ("struct s { int a; }; translator struct s < int x > { b = x; };", "D_XLATE_MEMB"),
    ('struct s { int a; }; translator struct s < int x > { a = "b"; };', "D_XLATE_INCOMPAT"),
])
def test_a_mistake_in_a_declaration_gets_the_right_error_tag(tmp_path, declaration, expected):
    path = tmp_path / "a.d"
    path.write_text(declaration + "\nBEGIN { exit(0); }\n")
    status, _out, said = run("-x", "errtags", "-s", str(path))
    assert status == 1 and f"[{expected}] line " in said, said


def test_an_error_in_a_script_names_the_line(tmp_path):
    path = tmp_path / "a.d"
    path.write_text("BEGIN\n{\n\ttrace(nosuch);\n}\n")
    status, _out, said = run("-s", str(path))
    assert (status, said) == (1, f"dtrace: failed to compile script {path}: line 3: failed to "
                              "resolve nosuch: Unknown variable name\n")


def compile_text(text):
    compiled(pipeline(), text)


WORDS = ["BEGIN", "{", "}", "(", ")", "[", "]", "x", "1", "'a'", '"b"', "@", "@a", "+", "-", "*",
         "/", "=", "==", "->", ".", ",", ";", "self", "this", "int", "struct s", "sizeof", "?", ":",
         "trace", "count()", "if", "else", "inline", "typedef", "\n", "#pragma D option quiet\n",
         "printf", "&", "!", "~", "++", "string", "quantize", "<", ">", "translator", "xlate"]


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=60),
                 st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join),
                 st.lists(st.sampled_from(WORDS), max_size=15).map(
                     lambda words: "BEGIN { " + " ".join(words) + " }")))
def test_arbitrary_text_compiles_or_raises_a_d_error(text):
    try:
        compile_text(text)
    except DError as error:
        assert error.text and "Traceback" not in error.text


@pytest.mark.parametrize("text", [
    "BEGIN { trace(" + "(" * 5000 + "1" + ")" * 5000 + ") }", "BEGIN { x = " + "-" * 5000 + "1 }",
    "BEGIN { trace(" + "1+" * 3000 + "1) }", "BEGIN { " + "if (1) { " * 500 + "}" * 500 + " }",
    "int " + "*" * 3000 + "x;", "BEGIN { x = " + "1 ? 2 : " * 3000 + "3 }",
    "BEGIN { trace(x" + "[1" * 500 + "]" * 500 + ") }", "BEGIN { x = " + "x = " * 3000 + "1 }",
])
def test_deeply_nested_sources_compile_or_raise_a_d_error(text):
    try:
        compile_text(text)
    except DError as error:
        assert error.tag
