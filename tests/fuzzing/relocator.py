"""A relocator program that gives wrong answers: relocator.py FILE.

FILE contains a seed or the word "right". The answers are those of examples/relocator.py, with
random changes unless the word is "right".
"""

import importlib
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]),
                str(Path(__file__).resolve().parents[2] / "examples")]
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # discard this program's error messages

VALUES = (None, True, 0, -1, 1 << 64, 0.5, "", "zz", "00" * 5000, [], {}, [[]], "c3", "copy")
SEED = Path(sys.argv[1]).read_text().strip()
RNG = random.Random(SEED)


def changed(row):
    """Return a copy of an answer in which one value is replaced at random."""
    row = json.loads(json.dumps(row))
    key = RNG.choice([*row, "verdict", "load", "pc"])
    row[key] = RNG.choice(VALUES)
    return row


def answer(row):
    """Write an answer or, at random, a violation of the protocol."""
    match 99 if SEED == "right" else RNG.randrange(40):
        case 0:
            sys.stdout.write(RNG.choice(("\n", "{", "nothing\n", "[1]\n", "\0\n", '{"a": NaN}\n')))
        case 1:
            sys.exit(RNG.randrange(3))
        case 2 | 3 | 4 | 5:
            row = changed(row)
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


relocator: Any = importlib.import_module("relocator")
relocator.answer = answer
relocator.main()
