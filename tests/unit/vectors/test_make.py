"""Vectors made: programs are found, what kills nothing goes, and what stands in a folder comes out again."""

from __future__ import annotations

from pathlib import Path

from pymllm.faults.table import find_faults, own_cabinet
from pymllm.history.operations import Alloc
from pymllm.vectors.claims import percent
from pymllm.vectors.format import Vector, VectorStep
from pymllm.vectors.make import Made, choose, make_vectors, read_sources, try_faults
from pymllm.vectors.page import BEGIN, CALLERS, UNSHOWN, make_page, tell_of
from pymllm.vectors.programs import derive_source, is_of_caller, search_for
from pymllm.vectors.run import load_all
from tests.unit.vectors.runners import FOLDER

STEP = VectorStep(Alloc(1), {})


def vector(id: str, needs: tuple[str, ...], steps: int = 1) -> Vector:
    return Vector(id, "A3", "", "counters", "must", needs, {}, (STEP,) * steps)


def test_of_each_fault_the_killer_with_the_fewest_needs_and_steps_is_kept() -> None:
    """A vector that kills no fault is dropped, and so is a vector that a better one replaces."""
    best, long, needy, idle = vector("a", ()), vector("b", (), 2), vector("c", ("pool",)), vector("d", ())
    kills = {"a": {"B1"}, "b": {"B1"}, "c": {"B1", "B2"}, "d": set()}
    made = choose(
        {"slots": [needy, long, idle, best]}, {id: frozenset(faults) for id, faults in kills.items()}
    )
    assert made.vectors == {"slots": (best, needy)}
    assert made.kills == {"a": {"B1"}, "c": {"B1", "B2"}}
    assert list(made.files()) == ["slots.jsonl"]


def test_of_prefix_caches_the_plainest_with_a_pool_and_without_are_kept() -> None:
    """A window, a state or another order is asked of few; a claim that nearly all have is none."""
    paged = {"page_size": 4, "window": None}
    none, pool = {**paged, "pool": "none"}, {**paged, "pool": "token"}
    plain = Vector("plain", "R8", "", "counters", "must", ("inspect", "pool"), pool, (STEP,) * 3)
    strict = Vector("strict", "R8", "", "counters", "must", ("exact_lru",), pool, (STEP,))
    windowed = Vector("windowed", "R8", "", "counters", "must", (), {**pool, "window": 2}, (STEP,))
    states = Vector("states", "R8", "", "counters", "must", (), {**pool, "track_slots": 2}, (STEP,))
    bare = Vector("bare", "R8", "", "counters", "must", ("exact_lru",), none, (STEP,))
    every = [windowed, states, strict, plain, bare]
    made = choose({"prefix": every}, {it.id: frozenset({"B1"}) for it in every})
    assert made.vectors == {"prefix": (bare, plain)}


def test_of_a_plain_cache_three_are_kept_of_each_fault() -> None:
    """The plainest; one that needs more, or other pages, is kept only where there is no plainer one."""
    config = {"page_size": 1, "pool": "token", "window": None}
    steps = [(STEP,) * count for count in (1, 2, 3, 4)]
    four = [Vector(f"{len(it)}", "R8", "", "counters", "must", ("pool",), config, it) for it in steps]
    paged = Vector("paged", "R8", "", "counters", "must", ("pool",), {**config, "page_size": 4}, (STEP,) * 2)
    every = [paged, *four]
    made = choose({"prefix": every}, {it.id: frozenset({"B1"}) for it in every})
    assert made.vectors == {"prefix": tuple(four[:3])}
    again = choose(made.vectors, made.kills)
    assert again == made


def test_nobody_looks_for_a_fault_of_the_engine() -> None:
    """It is the caller's, and the page says so; a bug that is planted in a cache, too, counts there."""
    caller, cache = find_faults(("B104", "B104-blocks"), own_cabinet())
    assert search_for(caller) == []
    assert not is_of_caller(cache)
    assert CALLERS["B104"] == ("B104-blocks",)
    assert set(CALLERS) == {it.id for it in own_cabinet() if is_of_caller(it)}
    assert CALLERS.keys().isdisjoint(UNSHOWN)


def test_a_search_ends_with_its_time(tmp_path: Path) -> None:
    """A search that runs out of time tells the faults that it has not looked for."""
    made = make_vectors(tmp_path, is_search=True, seconds=0.0)
    assert made.vectors == {}
    assert made.unsearched == tuple(it.id for it in own_cabinet())


def test_a_page_counts_the_faults_of_caches_and_those_of_their_callers() -> None:
    """Each share is of what it says."""
    made = Made({"slots": (vector("a", ()),)}, {"a": frozenset({"B91", "B92"})})
    page = make_page(made, "# Mine\n")
    every = len(own_cabinet()) - len(CALLERS)
    assert page.startswith(f"# Mine\n\n{BEGIN}\n\n1 vectors in ")
    assert f"contexts and indexes | {every} | 2 | {percent(2, every)} |" in page
    assert f"| faults of the simulated engine | {len(CALLERS)} | 0 | none can be |" in page
    assert "| B91 | A1, A5 | `a` |" in page
    assert "the caller's mistake, whatever its cache answers; in a cache it is B104-blocks |" in page
    assert f"| all kinds | everything | 1 of 1 | 2 | {every} | {percent(2, every)} |" in page
    assert tell_of(made).startswith(f"show 2 of the {every} planted faults of caches, ")


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
