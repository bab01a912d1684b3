"""Tests of ``-x oformat``; FreeBSD 15's dtrace(1) prints the same for these programs."""

import json
import re

import pytest

from tests.dtrace.run.test_edges import run

VALUES = r"""BEGIN { trace(1); trace("text"); trace((char)5); trace((short)-5);
    trace((char)-5); trace((unsigned int)-1); trace(-5LL); printf("%d %s\n", 3, "x\"y<&>");
    printf("z"); exit(0); }"""
OF_VALUES = (
    r"""{"value":1}, {"value":"text"}, {"value":5}, {"value":65531}, {"value":251}, {"value":-1},"""
    r""" {"value":-5}, {"message":"3 x\"y<&>\n"}, {"value":3}, {"value":"x\"y<&>"},"""
    r""" {"message":"z"}, {"value":0}""")
AGGREGATIONS = """BEGIN { @a = count(); @f = avg(7); @g = stddev(9); @h["a"] = min(3); @m = max(4);
    @l = lquantize(5, 0, 10, 5); @l = lquantize(-5, 0, 10, 5); @l = lquantize(50, 0, 10, 5);
    @ll = llquantize(50, 10, 0, 2, 10); @q["x"] = quantize(3);
    @n["u", 2] = count(); @n["v", -1] = count(); @o["u", 2] = sum(9);
    printa(@a); printa(@f); printa(@g); printa(@h); printa(@m); printa(@l); printa(@ll);
    printa(@q); printa(@n); printa("%s %d %@d %@d\\n", @n, @o); exit(0); }"""
OF_AGGREGATIONS = (
    '{"aggregation-data": [{"keys": [],"count":1}],"aggregation-name":"a"}, '
    '{"aggregation-data": [{"keys": [],"average":7}],"aggregation-name":"f"}, '
    '{"aggregation-data": [{"keys": [],"stddev":0}],"aggregation-name":"g"}, '
    '{"aggregation-data": [{"keys": [{"value":"a"}],"min":3}],"aggregation-name":"h"}, '
    '{"aggregation-data": [{"keys": [],"max":4}],"aggregation-name":"m"}, '
    '{"aggregation-data": [{"keys": [], "buckets": [{"value":0,"operator":"<","count":1}, '
    '{"value":0,"count":0}, {"value":5,"count":1}, {"value":10,"operator":">=","count":1}]}],'
    '"aggregation-name":"l"}, '
    '{"aggregation-data": [{"keys": [], "buckets": [{"value":40,"count":0}, '
    '{"value":50,"count":1}, {"value":60,"count":0}]}],"aggregation-name":"ll"}, '
    '{"aggregation-data": [{"keys": [{"value":"x"}], "buckets": [{"value":1,"count":0}, '
    '{"value":2,"count":1}, {"value":4,"count":0}]}],"aggregation-name":"q"}, '
    '{"aggregation-data": [{"keys": [{"value":"u"}, {"value":2}],"count":1}, '
    '{"keys": [{"value":"v"}, {"value":-1}],"count":1}],"aggregation-name":"n"}, '
    '{"aggregation-data": [{"keys": [{"value":"v"}, {"value":-1}],"count":1,"sum":0}, '
    '{"keys": [{"value":"u"}, {"value":2}],"count":1,"sum":9}],"aggregation-name":"n"}')


@pytest.mark.parametrize("program, output", [(VALUES, OF_VALUES), (AGGREGATIONS, OF_AGGREGATIONS)])
def test_the_json_document_is_that_of_dtrace(program, output):
    status, out, said = run("-x", "oformat=json", "-n", program)
    assert status == 0 and not said
    assert re.sub(r'"timestamp":\d+', '"timestamp":7', out) == (
        '{"dtrace": {"probes": [{"timestamp":7,"cpu":0,"id":1,"provider":"dtrace","module":"",'
        f'"function":"","name":"BEGIN", "output": [{output}]}}]}}}}\n')


def test_the_xml_document_is_that_of_dtrace():
    status, out, _said = run("-x", "oformat=xml", "-n", r"""BEGIN { printf("x\"y<&>"); @h["a"] =
        min(3); printa(@h); @q = quantize(0); printa(@q); @e = count(); clear(@e); exit(0); }""")
    assert status == 0 and re.sub(r"<timestamp>\d+", "<timestamp>7", out) == (
        '<dtrace><probes><timestamp>7</timestamp><cpu>0</cpu><id>1</id><provider>dtrace</provider>'
        '<module></module><function></function><name>BEGIN</name><output><message>x"y&lt;&amp;&gt;'
        '</message></output><output><value>0</value></output><output><aggregation-data><keys>'
        '<value>a</value></keys><min>3</min></aggregation-data><aggregation-name>h'
        '</aggregation-name></output><output><aggregation-data><buckets><value>-1</value><count>0'
        '</count></buckets><buckets><value>0</value><count>1</count></buckets><buckets><value>1'
        '</value><count>0</count></buckets></aggregation-data><aggregation-name>q'
        '</aggregation-name></output></probes></dtrace>\n')


@pytest.mark.parametrize("program, data", [
    ("@ = llquantize(100000, 10, 0, 3, 10);",
     '"buckets": [{"value":9000,"count":0}, {"value":10000,"count":1,"operator":">="}]'),
    ("@ = llquantize(0, 10, 0, 1, 10);",
     '"buckets": [{"value":1,"count":1,"operator":"<"}, {"value":1,"count":0}]'),
    ("@ = quantize(4); normalize(@, 2);",
     '"buckets": [{"value":2,"count":0}, {"value":4,"count":0}, {"value":8,"count":0}]'),
    ("@ = quantize(4); clear(@);",
     '"buckets": [{"value":-1,"count":0}, {"value":0,"count":0}, {"value":1,"count":0}]'),
    ("@ = lquantize(4, 0, 9); clear(@);", '"buckets": [{"value":0,"operator":"<","count":0}, '
     '{"value":0,"count":0}, {"value":1,"count":0}]'),
])
def test_distributions_have_the_buckets_of_the_text(program, data):
    _status, out, _said = run("-x", "oformat=json", "-n", f"BEGIN {{ {program} exit(0); }}"
                              " END { printa(@); }")
    assert f'"aggregation-data": [{{"keys": [], {data}}}]' in out


def test_actions_that_would_spoil_the_document_have_no_effect():
    status, out, said = run("-w", "-x", "oformat=json", "-n", """
        BEGIN { trace(1); system("echo hi"); freopen("/nowhere/x"); trace(2); exit(0); }""")
    assert status == 0 and json.loads(out)["dtrace"]["probes"][0]["output"] == [
        {"value": 1}, {"value": 2}]
    assert said.count("has no effect with -x oformat") == 2


def test_text_follows_an_output_format_that_is_taken_back():
    _status, out, _said = run("-x", "oformat=json", "-x", "oformat=none", "-n",
                              "BEGIN { trace(1); exit(0); }")
    assert "FUNCTION:NAME" in out


@pytest.mark.parametrize("kind, document", [
    ("json", '{"dtrace": {"probes": []}}\n'), ("xml", "<dtrace></dtrace>\n")])
def test_a_trace_without_records_is_an_empty_document(kind, document):
    status, out, _said = run("-k", "teaching/amd64", "-x", f"oformat={kind}", "-c", "fibonacci(2)",
                             "-n", "fbt::strlen:entry /0/ { }")
    assert status == 0 and out == document


def test_stacks_symbols_and_memory_are_described():
    status, out, said = run(
        "-k", "teaching/amd64", "-x", "oformat=json", "-c", 'strlen("hello")', "-n", """
        fbt::strlen:entry { stack(2); sym(caller); mod(caller); func((uintptr_t)&`strlen);
            tracemem(arg0, 6); tracemem(arg0 + 1, 3); printm(2, memref((void *)arg0, 2));
            print((short)3); print("s");
            @[func((uintptr_t)&`strlen), stack(1)] = count(); printa(@); }""")
    assert status == 0 and not said
    record = next(one for one in json.loads(out[out.index("{"):])["dtrace"]["probes"]
                  if one["name"] == "entry")
    assert (record["function"], record["module"], record["provider"]) == ("strlen", "kernel", "fbt")
    stack, symbol, module, function, *memory, printed = record["output"]
    assert list(stack) == ["stack-frames"] and all(
        frame["symbol"].startswith(f"{frame['module']}`{frame['name']}")
        for frame in stack["stack-frames"] if "name" in frame)
    assert symbol["sym"].startswith(("kernel`", "0x")) and list(module) == ["mod"]
    assert function == {"sym": "kernel`strlen", "object": "kernel", "name": "strlen"}
    assert memory == [
        {"tracemem": "hello"}, {"tracemem": "ell"}, {"printm": "he"},
        {"type": [{"name": "short", "value": "0x3"}]}, {"type": [{"name": "string", "value": "s"}]}]
    row, = printed["aggregation-data"]
    assert row["keys"][0] == function and list(row["keys"][1]) == ["stack-frames"]
    assert row["count"] == 1
