"""Print gdb's backtraces of user programs (runs inside gdb).

The environment variable POSITIONS names a file with a JSON row for each instruction count: the
count, and the (file, offset from the addresses in the file) of each object that the process has
mapped. RESULTS is the file to write: a JSON row with the result of ``stack`` for each count.
"""

import json
import os

import gdb

MOST = int(os.environ["FRAMES"])


def stack():
    """Return the addresses of the frames, and whether gdb took a caller for the frame itself.

    gdb does so if the two functions have no names and the same stack pointer.
    """
    found, same = [], False
    try:
        frame = gdb.newest_frame()
        while frame is not None and len(found) < MOST:
            if frame.type() in (gdb.NORMAL_FRAME, gdb.SIGTRAMP_FRAME):
                found.append(frame.pc())
            same = frame.unwind_stop_reason() == gdb.FRAME_UNWIND_SAME_ID
            frame = frame.older()
    except gdb.error:
        pass
    return found, same


loaded = None
for setting in ("backtrace past-main on", "backtrace past-entry on", "confirm off"):
    gdb.execute(f"set {setting}")
with open(os.environ["POSITIONS"]) as given, open(os.environ["RESULTS"], "w") as results:
    for position, files in map(json.loads, given):
        if files != loaded:
            gdb.execute("symbol-file", to_string=True)
            for path, offset in files:
                gdb.execute(f"add-symbol-file {path} -o {offset}", to_string=True)
            loaded = files
        gdb.execute(f"monitor go {position}", to_string=True)
        gdb.execute("maintenance flush register-cache", to_string=True)
        gdb.execute("maintenance flush dcache", to_string=True)
        results.write(json.dumps(stack()) + "\n")
