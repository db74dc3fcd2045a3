"""Coverage goals that runs must reach: which there are, and when each is met."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from recorded_requests import CONFIG

from pymllm.adapters.base import CAPABILITIES, header_of
from pymllm.adapters.registry import OWN, find_adapter, load_adapter, make_adapter
from pymllm.faults.table import BUGS
from pymllm.history.files import Config, Header
from pymllm.history.operations import KINDS
from pymllm.oracle.coverage import GOALS, NAMES, expected_goals, expected_names, goals_of
from pymllm.oracle.laws import find_law
from pymllm.oracle.laws.goal import Condition, CoverageGoal, make_goals

# -- A coverage goal is expected where its capabilities are claimed and its conditions hold ------------------


PAGED = Condition("pages of several tokens", lambda config: config.get("page_size") != 1)
CACHING = Condition("prefix caching", lambda config: config.get("caching") is not False)


def test_goals_are_made_from_rows() -> None:
    """Laws and bugs by their ids; what they share is said once."""
    one, two = make_goals(
        "slots",
        ("pages merge", "A4 X4", "B95 B97"),
        ("pages wait", "A4"),
        needs="merges groups",
        when=(PAGED,),
        of_engine=True,
    )
    needs = frozenset({"merges", "groups"})
    laws, bugs = ("A4", "X4"), ("B95", "B97")
    assert one == CoverageGoal("pages merge", "slots", laws, bugs, needs, (PAGED,), of_engine=True)
    assert two == CoverageGoal("pages wait", "slots", ("A4",), (), needs, (PAGED,), of_engine=True)


def test_every_capability_and_every_condition_counts() -> None:
    """One that is missing is enough."""
    (bare,) = make_goals("slots", ("a", "A1"))
    assert bare.is_expected_of({}, ())
    (one,) = make_goals("slots", ("a", "A1"), needs="merges groups", when=(PAGED, CACHING))
    paged = {"page_size": 4}
    assert one.is_expected_of(paged, ["groups", "merges", "pool"])
    assert not one.is_expected_of(paged, ["groups"])
    assert not one.is_expected_of({"page_size": 1}, ["groups", "merges"])
    assert not one.is_expected_of({**paged, "caching": False}, ["groups", "merges"])
    (one,) = make_goals("slots", ("a", "A1"), unless="groups merges")
    assert one.is_expected_of({}, ["pool"])
    assert not one.is_expected_of({}, ["merges"])


# -- The registry of coverage goals: complete, consistent, and the only place where names come from ----------


ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "pymllm"

each_goal = pytest.mark.parametrize(
    "goal", GOALS, ids=lambda one: f"{one.kind}{'-engine' * one.of_engine}-{one.name}"
)


def test_a_name_stands_once_for_each_kind() -> None:
    """Two rows under one name would be one count for two questions."""
    counts = Counter((one.kind, one.of_engine, one.name) for one in GOALS)
    assert max(counts.values()) == 1
    assert len(GOALS) >= 60
    assert {one.kind for one in GOALS} == set(KINDS)


@each_goal
def test_every_goal_can_be_read_and_placed(goal: CoverageGoal) -> None:
    """A clause without a full stop, laws about this kind, bugs and capabilities that there are."""
    assert re.fullmatch(r"[a-zA-Z][^.;:]*[^.;: ]", goal.name)
    assert len(goal.name) < 90
    assert goal.laws
    assert all(goal.kind in find_law(law).kinds for law in goal.laws)
    assert goal.needs | goal.unless <= set(CAPABILITIES)
    assert ("engine" in goal.needs) == goal.of_engine


def own_headers() -> list[tuple[Header, str]]:
    """The header of every configuration of our own adapters, and of two that take another contract."""
    found = []
    others = ("test_own_memory:OwnMemory", "test_trusted_hashes:Trusting")
    for name in (*(entry.name for entry in OWN), *(f"tests.unit.oracle.{other}" for other in others)):
        for config in load_adapter(find_adapter(name)).CONFIGURATIONS:
            adapter = make_adapter(name, dict(config))
            found.append((header_of(adapter), name))
            adapter.close()
    return found


def test_every_goal_is_expected_of_some_configuration_of_our_own() -> None:
    """The registered goals are exactly the goals that our own configurations are expected to reach."""
    expected = {
        (header.kind, of_engine, name)
        for header, _ in own_headers()
        for of_engine in (False, True)
        for name in expected_goals(header, of_engine=of_engine)
    }
    assert {(one.kind, one.of_engine, one.name) for one in GOALS} == expected


def test_what_is_expected_is_asked_for_by_header_or_by_its_parts() -> None:
    """The same either way, and nothing of an engine's life unless it is asked for."""
    header = Header("x", "prefix", {"page_size": 1, "pool": "token"}, ("engine", "pool"))
    asked = expected_names("prefix", header.config, header.capabilities, of_engine=True)
    assert expected_goals(header, of_engine=True) == asked
    assert asked <= {one.name for one in goals_of("prefix", of_engine=True)}
    assert not any(one.of_engine for one in goals_of("prefix"))
    assert "the engine comes to rest" in asked - expected_goals(header)


def spelled_names() -> set[str]:
    """Return every name that a call of ``meet`` spells out, or that a function of met goals returns."""
    found = set()
    for path in (*(SOURCE / "oracle").rglob("*.py"), *(SOURCE / "machines").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("meet") and node.args:
                found |= _texts(node.args[0])
            elif isinstance(node, ast.FunctionDef) and node.name.startswith("_met_by_"):
                dicts = [each for each in ast.walk(node) if isinstance(each, ast.Dict)]
                found |= {text for each in dicts for key in each.keys if key for text in _texts(key)}
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "met":
                assert isinstance(node.value, ast.Dict)
                found |= {text for key in node.value.keys if key is not None for text in _texts(key)}
    return found


def _texts(node: ast.expr) -> set[str]:
    """Texts that an expression may be: constants, and both sides of a choice."""
    if isinstance(node, ast.IfExp):
        return _texts(node.body) | _texts(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def test_no_judge_counts_what_nobody_registered() -> None:
    """Not even on a way that no test takes."""
    spelled = spelled_names()
    assert len(spelled) > 200
    assert spelled - NAMES == set()


def test_every_name_stands_in_some_source() -> None:
    """A coverage goal that no judge knows can never be met; names put together from parts are left out."""
    tables = {
        SOURCE / "oracle" / "coverage" / "blocks.py",
        SOURCE / "oracle" / "laws" / "prefix_situations.py",
    }
    text = "".join(path.read_text(encoding="utf-8") for path in {*SOURCE.rglob("*.py")} - tables)
    composed = [
        r"an? (stretch|entry) .*is refused",
        r"a write with .* is refused",
        r"rows are written in shape \w+",
        r"a (key|page) in form \w+ is (read|hashed)",
        r"a request is retracted (in decode|between two chunks)",
        r"cached tokens lie .*",
        r"too few blocks are left for a (request|chunk)",
        r"a (request|chunk) finds no room where there is some",
        r"a token (below 0|above 32 bits) is refused",
        r"the pool refuses (displaced slots|a revival under a hold)",
    ]
    missing = [name for name in NAMES if f'"{name}"' not in text]
    assert [name for name in missing if not any(re.fullmatch(pattern, name) for pattern in composed)] == []


def test_every_bug_is_a_known_one() -> None:
    """Ids as docs/faults.md has them."""
    assert {bug for one in GOALS for bug in one.bugs} <= BUGS.keys()


# -- Which coverage goals of blocks and of whole requests a configuration must reach -------------------------


CLAIMS = ("callbacks", "faults", "mamba", "refusals")
ALL = ("faults", "inspect", "mamba", "pool", "refusals")


def test_more_is_expected_of_who_can_do_more() -> None:
    """Each capability and setting adds its own, and takes nothing away."""
    config: dict[str, int | str | bool | None] = {"policy": "lru", "slots": 3}
    everything = expected_goals(Header("x", "blocks", config, CLAIMS))
    for fewer in (CLAIMS[1:], CLAIMS[:1], CLAIMS[:2]):
        assert expected_goals(Header("x", "blocks", config, fewer)) <= everything
    assert "a held descendant is deregistered" not in everything
    one_slot = expected_goals(Header("x", "blocks", {**config, "slots": 1}, CLAIMS))
    assert everything - one_slot >= {"the older of several slots goes"}
    off = expected_goals(Header("x", "blocks", {**config, "caching": False}, CLAIMS))
    assert "too few slots can be evicted" in off
    assert "a hash is taken" not in off


def expected(*claims: str, **config: int | str | None) -> frozenset[str]:
    return expected_goals(Header("x", "requests", {**CONFIG, **config}, claims))


def test_without_claims_only_traffic_is_expected() -> None:
    """X1, X2: neither misuse, nor failures, nor states."""
    bare = expected(policy="ref_zero", mamba_slots=0)
    assert "a prompt shares cached blocks" in bare
    assert not {"a malformed call is refused", "a forward pass fails", "a commit fails"} & bare
    assert not {"a request resumes from a cached state", "cached blocks are evicted to make room"} & bare
    assert bare < expected(*ALL)


def test_each_setting_adds_what_it_makes_possible() -> None:
    """C3, C6, C7: collisions, evictions, and slots that run out."""
    assert expected(*ALL, hash_digits=2) - expected(*ALL) == {"a hash names a block of other content"}
    assert expected(*ALL) - expected(*ALL, mamba_slots=64) == {
        "a commit runs out of slots",
        "a commit takes slots from released blocks",
    }
    assert expected(*ALL) - expected(*ALL, mamba_slots=1) == {"a step keeps several states"}
    assert expected(*ALL) - expected(*ALL, policy="ref_zero") == {
        "cached blocks are evicted to make room",
        "cached blocks are evicted for a decoding request",
        "a state goes with its block",
        "a commit takes slots from released blocks",
    }
    assert expected(*ALL, policy="ref_zero", mamba_slots=0) > expected(*ALL, caching=False)
    assert "a prompt shares cached blocks" not in expected(*ALL, caching=False, hash_digits=2)
    assert "no row is left for a request" in expected(*ALL, caching=False)


# -- Which coverage goals of an engine's life a configuration must reach -------------------------------------


WINDOWED: Config = {"page_size": 1, "window": 4, "pool": "swa", "slots": 24, "swa_slots": 18}


def lives(header: Header) -> frozenset[str]:
    return expected_goals(header, of_engine=True)


def header(adapter: str, **changes: int | str | None) -> Header:
    return header_of(make_adapter(adapter, {**WINDOWED, **changes}))


def test_what_a_run_must_meet_depends_on_the_cache() -> None:
    """E3: every exit everywhere; sharing and windows where there are such."""
    full, windowed = header("radix", window=None), header("radix-window")
    without_halves, chunk = header("radix-window", pool="token"), header("chunk", retains=False)
    every_exit = lives(chunk) & lives(full)
    assert len(every_exit) == 17
    assert lives(chunk) - every_exit == {"the cache takes nothing of what was computed"}
    assert "two requests hold one prefix" in lives(full)
    dead, returned = "cached tokens lie behind a dead window", "halves behind a window are returned"
    assert lives(windowed) - lives(full) == {dead, returned}
    assert lives(without_halves) - lives(full) == {dead}


def test_what_hybrids_must_meet_depends_on_their_track_slots() -> None:
    """M7: with one there are never two states, and with more than pages they never run out."""
    full = lives(header("radix", window=None))
    one, few, many = (
        lives(header("mamba", window=None, pool="token", track_slots=track_slots))
        for track_slots in (1, 3, 32)
    )
    assert full < one < few
    assert full < many < few
    assert few - one == {
        "the track slot of a state that is cached meanwhile is given back",
        "a request is retracted with a track slot in its hands",
        "an eviction spares a locked state",
        "a state goes while its KV is held",
        "several states lie on one path",
    }
    assert few - many == {
        "track slots run out between match and insert",
        "every state is locked and an eviction is asked for",
        "a snapshot is left out for want of a track slot",
        "an eviction makes room for a snapshot",
    }


def test_what_cannot_be_compared_is_not_expected() -> None:
    """M7: a configuration that does not say how many track slots there are."""
    known = lives(Header("x", "prefix", {"pool": "token"}, ("engine", "mamba")))
    assert "a request resumes from a state" in known
    assert "an eviction makes room for a snapshot" not in known


# -- Which coverage goals callers must bring about: one capability or key less, and it cannot be reached -----


BARE: dict[str, Config] = {
    "slots": {"page_size": 1},
    "prefix": {"page_size": 1, "pool": "none"},
    "states": {"page_size": 1, "track_slots": 3},
}
CLAIMED = ("pool", "swa", "extra_key", "hashes", "refusals", "faults", "callbacks", "inspect", "exact_lru")
STATES = ("mamba", "inspect", "refusals", "faults", "bare_holds", "exact_lru")


def asked_of(base: str, *claims: str, **config: Any) -> frozenset[str]:
    kind = "slots" if base == "slots" else "prefix"
    return expected_goals(Header("x", kind, {**BARE[base], **config}, claims))


@pytest.mark.parametrize(
    ("base", "claims", "config", "goal"),
    [
        ("slots", "merges", {}, "need merges"),
        ("slots", "groups", {}, "a group closes"),
        ("slots", "refusals", {}, "padding is refused"),
        ("slots", "refusals groups", {}, "a double free inside a group is refused"),
        ("slots", "", {"page_size": 4}, "one slot frees its page"),
        ("slots", "swa", {}, "halves move"),
        ("slots", "swa groups", {}, "halves move inside a group"),
        ("slots", "swa refusals", {}, "a half that is gone is refused"),
        ("slots", "swa refusals", {"page_size": 4}, "a move across pages is refused"),
        ("prefix", "", {"page_size": 4}, "an unaligned tail stays the caller's"),
        ("prefix", "pool", {}, "memory runs out"),
        ("prefix", "refusals", {}, "a stale node is used"),
        ("prefix", "extra_key", {}, "equal tokens are cached in another space only"),
        ("prefix", "inspect", {}, "a held path is split"),
        ("prefix", "inspect hashes", {}, "a hashed node is split"),
        ("prefix", "callbacks faults", {}, "a callback raises"),
        ("prefix", "faults", {"pool": "token"}, "the pool refuses a reset"),
        ("prefix", "", {"window": 4}, "an insert is refused whole"),
        ("prefix", "refusals", {"window": 4}, "a wrong token is refused"),
        ("prefix", "inspect", {"window": 4}, "a hold splits at the edge of its window"),
        ("prefix", "inspect", {"window": 4}, "an edge node is split"),
        ("prefix", "faults", {"window": 4, "pool": "token"}, "the pool refuses displaced slots"),
        ("prefix", "", {"window": 4, "pool": "swa"}, "a tombstone is revived under a hold"),
        ("prefix", "faults", {"window": 4, "pool": "swa"}, "the pool refuses a revival under a hold"),
        ("prefix", "refusals", {"window": 4, "pool": "swa"}, "halves that were not returned are refused"),
        ("states", "mamba inspect", {}, "a split of a held node leaves its state"),
        ("states", "mamba refusals", {}, "a state without a whole key is refused"),
        ("states", "mamba faults", {}, "the state pool refuses a reset"),
        ("states", "mamba bare_holds", {}, "a hold is taken where there is no state"),
        ("states", "mamba bare_holds", {}, "a state arrives under a hold"),
        ("states", "mamba inspect exact_lru", {}, "a stateless parent goes with its last child"),
    ],
)
def test_a_goal_is_expected_only_where_it_can_be_met(
    base: str, claims: str, config: dict[str, Any], goal: str
) -> None:
    """A goal is expected only of an adapter with the claims and the configuration that the goal needs."""
    claimed = claims.split()
    assert goal in asked_of(base, *claimed, **config)
    for missing in claimed:
        assert goal not in asked_of(base, *({*claimed} - {missing}), **config)
    for key in config:
        assert goal not in asked_of(base, *claimed, **{**config, key: BARE[base].get(key)})


def test_more_is_expected_of_who_claims_more() -> None:
    """A goal that needs a capability is expected with it only, and the plainest adapter has some goals."""
    every = asked_of("prefix", *CLAIMED, page_size=2, pool="swa", window=4)
    assert asked_of("prefix") < asked_of("prefix", *CLAIMED) < every
    assert {"the pool is exhausted", "an alloc fails"} <= asked_of("slots", "pool")
    refused = "a slot named twice is refused"
    assert refused in asked_of("slots", "refusals") - asked_of("slots", "refusals", page_size=4)


@pytest.mark.parametrize("kind", ["rows", "buffers", "states", "hashes"])
def test_refusals_tuples_and_snapshots_are_expected_where_there_are_such(kind: str) -> None:
    """Whoever claims more, or has track slots, must reach more."""
    without, tuples = expected_names(kind, {}, ()), expected_names(kind, {}, ("bigrams",))
    refused = expected_names(kind, {}, ("refusals",))
    every = expected_names(kind, {"track_slots": 1}, ("bigrams", "refusals"))
    assert without < refused <= every
    assert (without < tuples) == (kind == "hashes")
    assert (refused < every) == (kind in ("hashes", "states"))


def test_a_window_of_one_page_has_no_edge_to_split() -> None:
    """S5: the edge node is the last one."""
    assert "an edge node is split" not in asked_of("prefix", "inspect", window=4, page_size=4)


@pytest.mark.parametrize("window", [1, 3, 4])
def test_a_page_is_one_token_where_nothing_says_otherwise(window: int) -> None:
    """S5: so no window has a ragged edge."""
    config: Config = {"pool": "none", "window": window}
    said = asked_of("prefix", *CLAIMED, window=window)
    assert expected_goals(Header("x", "prefix", config, CLAIMED)) == said


def test_little_can_happen_to_what_keeps_nothing() -> None:
    """Specification, prefixes, of a cache that retains nothing."""
    assert asked_of("prefix", retains=False) == frozenset()
    assert asked_of("prefix", "pool", retains=False, pool="token") == {"memory runs out"}


def test_states_are_expected_where_there_are_some() -> None:
    """M2, M7: other caches have none, a match of these never ends inside a node, one slot is not enough."""
    of_states = {one.name for one in goals_of("prefix") if "mamba" in one.needs}
    assert not asked_of("prefix", *CLAIMED) & of_states
    assert asked_of("states", *STATES) >= of_states
    assert "a match ends inside a node" in asked_of("prefix", *STATES) - asked_of("states", *STATES)
    several = {"a state above does not count", "the state pool refuses an eviction half-way"}
    assert several <= asked_of("states", *STATES) - asked_of("states", *STATES, track_slots=1)
