"""Write docs/faulty.md: ``python tests/meta/faulty_page.py``, with ``--measure [NAME]...`` to search again.

Searching for all of them, from a few seeds each, takes half an hour; after a change of machines it is enough
to name those that ``tests/meta/test_faulty.py`` finds otherwise, and the new ones.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from faulty_table import CAUGHT, Caught, class_of, look_for, save

from pymllm.adapters.entry import AdapterEntry
from pymllm.faults.adapters import FAULTY
from pymllm.oracle.laws import find_law

PAGE = Path(__file__).parents[2] / "docs" / "faulty.md"


_HEAD = """\
# Wrong implementations

Each of these adapters is one of ours with one bug, planted on purpose. The search must find every bug.
`pymllm verify --adapter NAME` names the law that the bug breaks, and prints the smallest program that
shows it. [faults.md](faults.md) has the bugs of serving engines.

`tests/meta/test_faulty.py` checks the law and the length of each program in this table. It also plays each
program on the class without the bug, which must not break a law. `python tests/meta/faulty_page.py` writes
this page.

| adapter | its bug | law | demand of the law | operations of the program |
| --- | --- | --- | --- | --- |
"""


def render(caught: dict[str, Caught]) -> str:
    """Return the page as the table has it."""
    return _HEAD + "".join(_row(entry, caught[entry.name]) for entry in FAULTY)


def _row(entry: AdapterEntry, found: Caught) -> str:
    sentence = find_law(found.law).sentence
    return f"| `{entry.name}` | {entry.summary} | {found.law} | {sentence} | {found.operations} |\n"


def _measure(name: str) -> Caught:
    """Search from four seeds, or until one finds it; of equal programs that of the quickest search counts."""
    found: list[tuple[float, Caught]] = []
    for seed in range(20):
        found += filter(None, [_search(name, seed)])
        if seed >= 3 and found:
            return min(found, key=lambda one: (one[1].operations, one[0]))[1]
    sys.exit(f"{name}: {class_of(name).BREAKS} is not broken from any of 20 seeds: name another law first")


def _search(name: str, seed: int) -> tuple[float, Caught] | None:
    """Return the seconds of a search and its result, or nothing where other laws alone are broken."""
    start = time.process_time()
    found = {finding.law: len(finding.history) for finding in look_for(name, seed).found}
    seconds = time.process_time() - start
    law = class_of(name).BREAKS
    also = sorted(found.keys() - {law})
    return (seconds, Caught(law, found[law], also, seed)) if law in found else None


if __name__ == "__main__":
    _, *words = sys.argv
    names = [entry.name for entry in FAULTY]
    again = (words[1:] or names) if words[:1] == ["--measure"] else []
    measured = {name: _measure(name) if name in again else CAUGHT[name] for name in names}
    save(measured)
    PAGE.write_text(render(measured), encoding="utf-8")
