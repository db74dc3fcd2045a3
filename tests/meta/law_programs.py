"""Write the two programs of each law of the specification: ``python tests/meta/law_programs.py [LAW]...``.

One history breaks the law, played on an implementation that is wrong in one way; the other has the same
operations, played on the sound one. `docs/builder/specification.py` prints them on the law's page; each page
has a file of its programs. A law of whole runs has a file of its own, with the counters of an engine that is
sound, and of the same one with a fault.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from faulty_table import CAUGHT, class_of, look_for

from pymllm.faults.table import PLANTED
from pymllm.history.files import History, dump_history, load_histories
from pymllm.oracle.laws import LAWS, Law
from pymllm.search.program import rerun_history
from pymllm.text_file import write_text_file

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
    return (
        _plain(kept.history, f"{law}-keeps", class_of(name).SOUND, ""),
        _plain(broken, f"{law}-breaks", name, broken.header.note),
    )


def _plain(history: History, name: str, adapter: str, note: str) -> History:
    """Leave away what ages: versions and the seed of the search."""
    header = dataclasses.replace(
        history.header, name=name, adapter=adapter, versions={}, seed=None, note=note, scenario=None
    )
    return History(header, history.steps)


def write_programs(law: Law, *programs: History) -> None:
    """Write the programs of a law into the file of its page, in the order of the laws."""
    path = PROGRAMS / f"{law.page}.jsonl"
    there = load_histories(path) if path.exists() else {}
    there |= {it.header.name: it for it in programs}
    names = [f"{it.id}-{verb}" for it in LAWS if it.page == law.page for verb in ("keeps", "breaks")]
    texts = ["".join(f"{line}\n" for line in dump_history(there[name])) for name in names if name in there]
    write_text_file(path, "\n".join(texts))


_FAULTS_OF_RUNS = {"E6": "B300"}

_RUN = {
    "config": {"cache": "radix", "page_size": 4, "capacity": 48, "chunk_tokens": 8, "decode_headroom": 0},
    "requests": [
        {"prompt_length": 12, "output_length": 30, "block_ids": [1, 2, 3], "block_tokens": 4},
        {"prompt_length": 14, "output_length": 30, "block_ids": [1, 2, 4, 5], "block_tokens": 4},
    ],
}
"""Two requests that share their first pages, and of which one is retracted."""


def write_run(law: Law) -> None:
    """Write the run of a law of whole runs, counted by a sound engine, and by a wrong one."""
    sys.path.insert(0, str(PROGRAMS.parents[1] / "builder"))
    from specification import count_run

    fault = next(it for it in PLANTED if it.id == _FAULTS_OF_RUNS[law.id])
    counted = {"keeps": count_run(_RUN), "breaks": count_run(_RUN, fault.edits), "fault": fault.id}
    write_text_file(
        PROGRAMS.with_name("runs") / f"{law.id}.json", json.dumps(_RUN | counted, indent=1) + "\n"
    )


if __name__ == "__main__":
    for law in LAWS:
        if len(sys.argv) > 1 and law.id not in sys.argv[1:]:
            continue
        if law.is_of_runs:
            write_run(law)
            print(law.id, _FAULTS_OF_RUNS[law.id])
            continue
        kept, broken = make_programs(law.id)
        write_programs(law, kept, broken)
        print(law.id, name_of(law.id), len(broken.steps))
