"""Vectors made: programs are found, what kills nothing goes, and what stands in a folder comes out again."""

from __future__ import annotations

from pymllm.conformance.vectors.format import Vector, VectorStep
from pymllm.conformance.vectors.make import choose, derive_source, read_sources, search_for, try_faults
from pymllm.conformance.vectors.run import load_all
from pymllm.faults.table import find_faults, own_cabinet
from pymllm.history.operations import Alloc
from tests.unit.conformance.vectors.runners import FOLDER

STEP = VectorStep(Alloc(1), {})


def vector(id: str, needs: tuple[str, ...], steps: int = 1) -> Vector:
    return Vector(id, "A3", "", "counters", "must", needs, {}, (STEP,) * steps)


def test_of_each_fault_the_killer_with_the_fewest_needs_and_steps_is_kept() -> None:
    """What kills nothing goes, and so does what others do better."""
    best, long, needy, idle = vector("a", ()), vector("b", (), 2), vector("c", ("pool",)), vector("d", ())
    kills = {"a": {"B1"}, "b": {"B1"}, "c": {"B1", "B2"}, "d": set()}
    made = choose(
        {"slots": [needy, long, idle, best]}, {id: frozenset(faults) for id, faults in kills.items()}
    )
    assert made.vectors == {"slots": (best, needy)}
    assert made.kills == {"a": {"B1"}, "c": {"B1", "B2"}}
    assert list(made.files()) == ["slots.jsonl"]


def test_what_stands_in_a_folder_is_derived_again() -> None:
    """A sample of each kind, to the last field."""
    there = {it.id: it for _, vectors in load_all(FOLDER).values() for it in vectors}
    sources = read_sources(FOLDER)[::9]
    for source in sources:
        made = derive_source(source)
        assert made == there[made.id]
    assert {source.kind for source in sources} >= {"prefix", "blocks", "slots"}


def test_a_search_finds_a_program_for_a_fault() -> None:
    """It shows that fault, with the least claims and with all."""
    (fault,) = find_faults(("B116",), own_cabinet())
    sources = search_for(fault)
    assert len(sources[0].needs) <= len(sources[-1].needs)
    made = [derive_source(source) for source in sources]
    assert all(source.kind == "rows" and source.law in fault.laws for source in sources)
    assert all(kills == {"B116"} for kills in try_faults({"rows": made}, [fault]).values())
