"""Print the variables of gdb's innermost function and its inlined functions (runs inside gdb).

The environment variable POSITIONS names a file with instruction counts, RESULTS the file to write:
a JSON row for each count, of functions with their variables: a number, ``null`` if gdb says that it
is optimized out, or ``false`` for anything else.
"""

import json
import os

import gdb

NUMBERS = (gdb.TYPE_CODE_INT, gdb.TYPE_CODE_PTR, gdb.TYPE_CODE_ENUM, gdb.TYPE_CODE_BOOL,
           gdb.TYPE_CODE_CHAR)


def value(frame, symbol):
    try:
        found = symbol.value(frame)
        if found.is_optimized_out:
            return None
        return int(found) if found.type.strip_typedefs().code in NUMBERS else False
    except (gdb.error, OverflowError):
        return False


def functions():
    frame = gdb.newest_frame()
    while frame is not None:
        try:
            block = frame.block()
        except RuntimeError:  # no debug data
            return
        variables = {}
        while block is not None and not block.is_static and not block.is_global:
            for symbol in block:
                if (symbol.is_argument or symbol.is_variable) and symbol.addr_class != (
                        gdb.SYMBOL_LOC_STATIC):
                    variables.setdefault(symbol.name, value(frame, symbol))
            if block.function is not None:
                break
            block = block.superblock
        yield [frame.name(), variables]
        if frame.type() != gdb.INLINE_FRAME:
            return
        frame = frame.older()


with open(os.environ["POSITIONS"]) as given, open(os.environ["RESULTS"], "w") as results:
    for position in map(int, given):
        gdb.execute(f"monitor go {position}", to_string=True)
        gdb.execute("maintenance flush register-cache", to_string=True)
        gdb.execute("maintenance flush dcache", to_string=True)
        results.write(json.dumps([position, list(functions())]) + "\n")
