"""Somebody's faults: request rows that keep what was in them, by themselves and by an edit."""

from __future__ import annotations

from pymllm.faults.fault import ANY, Fault
from pymllm.faults.plant import Edit, Replace

_FREE = "tiny_adapters:TinyRows.do_free_row"
_ZEROES = "self.rows[row] = [0] * self.context"

DIRTY = Fault("dirty", "keeps entries", ("P2",), ("tiny_adapters:TinyRows",), (Edit(_FREE, _ZEROES, "pass"),))
KEEPING = Fault("keeping", "keeps entries by itself", ("P1",), ("tiny_adapters:KeepsEntries",))
SOUND = Fault("sound", "nothing is wrong with it", ("P2",), ("tiny_adapters:TinyRows",))
STALE = Fault(
    "stale", "no longer fits", ("P2",), ("tiny_adapters:TinyRows",), (Edit(_FREE, "no such text", ""),)
)
ENDLESS = Fault(
    "endless",
    "never ends",
    ("P2",),
    ("tiny_adapters:TinyRows",),
    (Edit(_FREE, _ZEROES, "while True:\n    pass"),),
)
BROKEN = Fault("broken", "breaks down", ("P2",), ("tiny_adapters:LacksSetting",))

WHOLE = Fault(
    "whole",
    "frees nothing",
    ANY,
    ("tiny_adapters:TinyRows",),
    (
        Replace(
            "tiny_adapters:TinyRows.do_free_row", "def do_free_row(self, step, operation):\n    return Done()"
        ),
    ),
)
TABLE = (DIRTY, KEEPING)
BY_ANY = (WHOLE,)
TROUBLE = (STALE, BROKEN)
TWICE = (DIRTY, DIRTY)
STRANGE = (DIRTY, "dirty")
EMPTY = ()
NUMBER = 7
LAWLESS = (Fault("lawless", "cites no law", ("Z9",), ("rows",)),)
NOBODY = (Fault("nobody", "has no adapter", ("P2",), ("no-such-adapter",)),)
