"""What a path's page shows at a moment, read from the rendered page, and beside it the replay."""

import re

from dtrace.stacks.locals import Locals
from dtrace.stacks.shown_locals import variables_of

READ = """(function (t) {
  var range = document.getElementById('moment');
  range.value = t; range.dispatchEvent(new Event('input'));
  view.render();
  function text(node) { return node ? node.textContent : null; }
  var registers = {}, variables = [], scope = '';
  document.querySelectorAll('#registers .line').forEach(function (line) {
    registers[text(line.querySelector('code'))] = text(line.querySelector('button')); });
  Array.prototype.forEach.call(document.getElementById('variables').children, function (row) {
    if (row.tagName === 'P') { scope = text(row); return; }
    variables.push([scope, text(row.querySelector('code')),
      text(row.querySelector('button:not(.fold)')), text(row.querySelector('.unknown'))]); });
  return {registers: registers, variables: variables, when: text(document.getElementById('when')),
    place: text(document.getElementById('place')), stack: text(document.getElementById('stack')),
    instruction: text(document.getElementById('instruction')),
    calls: document.querySelectorAll('#tree .row').length,
    code: text(document.querySelector('#code .now'))};
})(%d)"""
VARIABLES = READ[READ.index("  function text"):READ.index("  return {registers")].replace(
    "  function text", "(function () { function text", 1) + "return variables; })()"
NUMBER = re.compile(r"-?(?:0x[0-9a-f]+|\d+)")
WORDS = {"true": 1, "True": 1, "false": 0, "False": 0, "NULL": 0}


def number_in(text):
    """Return the number that a value's text contains, or None for a structure or array."""
    if text.startswith(("{", "[")):
        return None
    text = re.sub(r"^\([^)]*(?:\([^)]*\))*[^)]*\)+ ", "", text)  # the type of a pointer
    if text.split(" ")[0] in WORDS:
        return WORDS[text.split(" ")[0]]
    enumerator = re.fullmatch(r"[A-Za-z_]\w* \((-?\d+)\)", text)
    found = enumerator[1] if enumerator else NUMBER.match(text)
    return int(found if enumerator else found[0], 0) if found else None


class Counts:
    """Number of values that are equal, that only one side knows, and that were not compared."""

    def __init__(self):
        self.equal = self.callers = self.registers = 0
        self.unknown = self.only_page = self.not_compared = 0


def compare(player, shown, moment, counts):
    """Compare what the page shows at a moment with the replay; return what the page shows."""
    read = shown.value(READ % moment)
    position = int(re.search(r"instruction (\d+)", read["when"])[1])
    assert player.seek(position) is None
    player.give()
    machine = player.machine
    for name, text in read["registers"].items():
        assert int(text, 16) == machine.read_register(name), (moment, name)
        counts.registers += 1
    for frame in (0, 1):
        if frame:
            read_frame = shown.value("view.selected = 1, view.renderValues(), 1") and (
                shown.value(VARIABLES))
        else:
            read_frame = read["variables"]
        values(moment, frame, read_frame, variables_of(Locals(machine), machine.read_register, 2),
               counts)
    return read


def values(moment, number, variables, frames, counts):
    """Compare the variables of one frame on the page with those of the replay."""
    page = {}
    for scope, name, value, unknown in variables:
        page.setdefault((scope.removesuffix(" [inlined]"), name), (value, unknown))
    seen = set()
    for frame in frames:
        if frame["frame"] != number or not any(scope == frame["function"] for scope, _ in page):
            continue  # a function that was entered before the path begins
        rows = frame["variables"]
        assert isinstance(rows, list)
        for row in rows:
            key = frame["function"], row["name"]
            if key in seen:
                continue  # hidden by a variable of an inner block
            seen.add(key)
            shown_value, unknown = page[key]
            if row["unknown"]:
                counts.unknown += bool(unknown)
                counts.only_page += not unknown
                continue
            if shown_value is None and unknown.startswith("not in the page"):
                counts.not_compared += 1
                continue
            assert shown_value is not None, (moment, key, unknown, row["value"])
            ours, theirs = number_in(shown_value), number_in(row["value"])
            if ours is None or theirs is None:
                counts.not_compared += 1
                continue
            assert (ours - theirs) % (1 << 64) == 0, (moment, key, shown_value, row["value"])
            counts.equal += 1
            counts.callers += number
