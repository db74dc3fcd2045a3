"""Write the two programs of each law of the specification: ``python tests/meta/law_programs.py [LAW]...``.

One history breaks the law, played on an implementation that is wrong in one way; the other has the same
operations, played on the sound one. `docs/builder/specification.py` prints them on the law's page.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from faulty_table import CAUGHT, class_of, look_for

from pymllm.history.files import History, write_history
from pymllm.oracle.laws import LAWS
from pymllm.search.program import rerun_history

PROGRAMS = Path(__file__).parents[2] / "docs" / "specification" / "programs"

_TELLING = {
    "X2": "faulty-one-by-one",
    "X6": "faulty-open-callbacks",
    "X7": "faulty-held-slots-lost",
    "A7": "faulty-forgotten-halves",
    "P3": "faulty-writes-everywhere",
    "P5": "faulty-one-layer-copies",
    "K1": "faulty-namespace-fallback",
    "C1": "faulty-oldest-blocks",
    "C3": "faulty-last-registrations",
    "C4": "faulty-kept-names",
    "C6": "faulty-youngest-slots",
    "C7": "faulty-one-layer-saves",
    "C9": "faulty-stale-index",
}
"""Laws whose shortest program is not the one that tells most."""


def name_of(law: str) -> str:
    """Return the wrong implementation that shows a law broken."""
    found = [name for name, caught in CAUGHT.items() if caught.law == law]
    return _TELLING.get(law) or min(found, key=lambda name: CAUGHT[name].operations)


def make_programs(law: str) -> tuple[History, History]:
    """Return the program that keeps a law and the one that breaks it."""
    name = name_of(law)
    findings = look_for(name, CAUGHT[name].seed).found
    broken = next(it.history for it in findings if it.law == law)
    kept = rerun_history(broken, class_of(name).SOUND)
    assert kept.violation is None
    assert kept.misfit is None
    return _plain(kept.history, class_of(name).SOUND, ""), _plain(broken, name, broken.header.note)


def _plain(history: History, adapter: str, note: str) -> History:
    """Leave away what ages: versions and the seed of the search."""
    header = dataclasses.replace(
        history.header, adapter=adapter, versions={}, seed=None, note=note, scenario=None
    )
    return History(header, history.steps)


if __name__ == "__main__":
    for law in LAWS:
        if len(sys.argv) > 1 and law.id not in sys.argv[1:]:
            continue
        kept, broken = make_programs(law.id)
        write_history(kept, PROGRAMS / f"{law.id}-keeps.jsonl")
        write_history(broken, PROGRAMS / f"{law.id}-breaks.jsonl")
        print(law.id, name_of(law.id), len(broken.steps))
