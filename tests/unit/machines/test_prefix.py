"""Tests of the machine of prefix caches and their states: keys, slots, handles, looks and acts."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from pymllm.adapters.key_forms import CONTAINERS
from pymllm.adapters.own_caches import WindowedRadix
from pymllm.history import operations as ops
from pymllm.history.operations import Key, Operation, Span
from pymllm.history.outcomes import Failed, Matched, Unsupported
from pymllm.machines.acting import acts_of, drive, make_machine
from pymllm.machines.prefix import PrefixMachine, StateActs
from pymllm.machines.prefix_caller import (
    SPACES,
    STYLES,
    TAIL,
    TOKENS,
    TRUNK,
    TURN,
    WAYS,
    PrefixCaller,
    alike_values,
    amount,
    looked_at,
    make_key,
    picked,
    spaces_of,
)
from pymllm.oracle.models.prefix_model import Space, path_of_key

PLAIN = (Space(),)


def test_styles_tell_every_space_form_and_tail_apart() -> None:
    """K1: each namespace, token width and container is drawn, with each length of tail."""
    keys = [make_key(4, 1, (), style) for style in range(STYLES)]
    assert {key.form for key in keys} == set(ops.KEY_FORMS) == set(CONTAINERS)
    assert {path_of_key(key).space for key in keys} == set(SPACES)
    assert {len(key.tokens) for key in keys} == {4, 5, 6, 7}
    kinds = {(key.extra_key, key.form, key.tokens) for key in keys}
    assert len(kinds) == 4 * len(ops.KEY_FORMS) * len(set(SPACES))


def test_turns_differ_in_one_token_of_their_page() -> None:
    """R9: the first turn in its first token, the second in its last; odd turns are none."""
    key = make_key(4, 6, (2, 4), 0)
    pages = [key.tokens[start : start + 4] for start in range(0, 24, 4)]
    trunk = (TRUNK,) * 4
    assert pages == [trunk, trunk, (TURN, *trunk[1:]), trunk, (*trunk[1:], TURN), trunk]
    assert make_key(4, 6, (1, 3), 0).tokens == (TRUNK,) * 24


def test_keys_share_everything_before_they_turn() -> None:
    """R2: a long key is a prefix of another until either turns."""
    assert make_key(2, 3, (4, 4), 0).tokens == make_key(2, 9, (4, 6), 0).tokens[:6]


def test_a_tail_is_no_page() -> None:
    """R1: what is left over is shorter than a page, and not on the trunk."""
    style = len(ops.KEY_FORMS) * 3
    assert make_key(4, 1, (), style, PLAIN).tokens == (*[TRUNK] * 4, *[TAIL] * 3)
    assert make_key(1, 2, (), style, PLAIN).tokens == (TRUNK, TRUNK)


def test_bigrams_are_pairs_of_the_same_tokens() -> None:
    """K1: a key of width 2 looks like the plain one to whoever looks at first elements only."""
    key = make_key(2, 1, (0,), 0, (Space(None, 2),))
    assert key.tokens == ((TURN, 1), (TRUNK, 1))


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"extra_key", "bigrams"}, set(SPACES)),
        ({"extra_key"}, {Space(), Space("1"), Space(1), Space("lora")}),
        ({"bigrams"}, {Space(), Space(None, 2)}),
        (set(), {Space()}),
    ],
)
def test_nobody_is_asked_for_spaces_that_he_does_not_claim(
    capabilities: set[str], expected: set[Space]
) -> None:
    """K1: a cache without namespaces is judged without them."""
    assert set(spaces_of(capabilities)) == expected


@pytest.mark.parametrize("dimensions", [[0, 1, 2, 3, 4], [0, 1], [1, 3]])
def test_alike_values_have_each_likeness(dimensions: list[int]) -> None:
    """K2: exchanged, joined, moved, another, empty for missing, a number for its digits, and equal."""
    for filled in range(32):
        pairs = [alike_values(dimensions, filled, 0, way) for way in range(WAYS)]
        differing = [sum(one != other for one, other in zip(*pair, strict=True)) for pair in pairs]
        assert differing == [2, 2, 2, 1, 1, 1, 0]
        for pair in (pairs[0], pairs[2]):
            assert sorted(map(str, pair[0])) == sorted(map(str, pair[1]))
        joined = ["".join(str(it) for it in values if it is not None) for values in pairs[1]]
        assert joined[0] == joined[1]
        given = {at for pair in pairs for values in pair for at, it in enumerate(values) if it is not None}
        assert given == {*dimensions[:2]} | {at for at in dimensions if filled >> at & 1}


def test_one_dimension_beside_the_first_can_be_other_empty_or_missing() -> None:
    """K2: there is nothing to exchange its value with."""
    assert alike_values([1], 0, 0, 3) == ([None, "cd", *[None] * 3], [None, "other", *[None] * 3])
    assert alike_values([1], 0, 0, 4)[1] == [None] * 5


CONFIG = {"page_size": 2, "window": 4, "pool": "swa", "slots": 12, "swa_slots": 12}


def caller(adapter: str = "radix-window", **changes: Any) -> Any:
    return make_machine(PrefixMachine, adapter, {**CONFIG, **changes})()


def asked(caller: PrefixCaller, kind: type[Operation]) -> list[Any]:
    """The operations of one kind, in order."""
    operations = [step.operation for step in caller.examiner.history.steps]
    return [operation for operation in operations if isinstance(operation, kind)]


def put(caller: PrefixCaller, *tokens: int) -> int | None:
    """Insert fresh slots and give back what was not adopted; return the step, if there was one."""
    slots = caller.allocate(len(tokens))
    assert slots is not None
    step = caller.insert(Key(tokens), slots, style=0)
    caller.give_back(slots)
    return step


class TestLooks:
    @pytest.mark.parametrize(("every", "looks"), [(1, 6), (2, 3), (4, 1)])
    def test_nodes_are_looked_at_now_and_then(self, every: int, looks: int) -> None:
        """R9, R10: as often as the machine says."""
        made = caller()
        type(made).INSPECT_EVERY = every
        made.begin()
        for _ in range(6):
            made.look()
        assert len(asked(made, ops.Inspect)) == looks


class TestCapabilities:
    @pytest.mark.parametrize(
        ("pool", "expected"),
        [("none", (False, False, False)), ("token", (True, False, True)), ("swa", (True, True, True))],
    )
    def test_what_there_is_is_read_off_the_configuration(
        self, pool: str, expected: tuple[bool, bool, bool]
    ) -> None:
        """Acts that make no sense are left away."""
        made = caller(pool=pool)
        assert (made.has_pool, made.has_halves, made.can_fail_pool) == expected
        assert (made.can_evict_secondary, made.can_refuse, made.can_fail_callback) == (True, True, True)


def test_at_the_end_everything_is_given_back() -> None:
    """E3, A2: the pool is whole again, and so the program's end is judged."""
    made = caller()
    made.lock(put(made, 1, 1, 2, 2, 3, 3))
    made.allocate(4)
    made.teardown()
    assert made.ownership.sizes()["available_size"] == 12
    assert (made.holds, made.model.pages) == ([], {})
    assert asked(made, ops.Insert)


class TestPartsOfPages:
    """A3, A5: an allocation may end inside a page, and any slot of a page gives all of it back."""

    @pytest.mark.parametrize(("pages", "tokens", "left"), [(1, 1, 10), (2, 4, 8), (3, 5, 6)])
    def test_a_hoard_may_end_inside_a_page(self, pages: int, tokens: int, left: int) -> None:
        """And takes the page as a whole."""
        made = caller()
        made.hoard_slots(pages)
        assert [it.tokens for it in asked(made, ops.Alloc)] == [tokens]
        assert made.ownership.sizes()["available_size"] == left

    @pytest.mark.parametrize("style", [0, 1])
    def test_only_slots_that_were_answered_have_names(self, style: int) -> None:
        """Or a program would free on another adapter what was never handed out there."""
        made = caller()
        made.give_back(made.allocate(2) or [])  # its last slot has the name of this step until now
        for _ in range(2):
            made.hoard_slots(1)
        made.give_hoard_back(style)
        assert asked(made, ops.Free)[-1].slots == (Span(3, 0, 1), Span(5, 0, 1))
        assert made.ownership.sizes()["available_size"] == 12

    @pytest.mark.parametrize(("style", "expected"), [(0, Span(1, 0, 4)), (1, (Span(1, 1, 2), Span(1, 3, 4)))])
    def test_a_page_goes_back_by_its_last_slot_alone(self, style: int, expected: Any) -> None:
        """Every second time; else by all of them."""
        made = caller()
        made.hoard_slots(2)
        made.give_hoard_back(style)
        (free,) = asked(made, ops.Free)
        assert free.slots == (expected if style else (expected,))
        assert made.ownership.sizes()["available_size"] == 12


class TestEveryKeyWithItsState:
    """M1: where an adapter claims no ``bare_inserts``, and no ``bare_holds``."""

    CONFIG: ClassVar[dict[str, Any]] = {"window": None, "pool": "token", "track_slots": 2}

    def test_a_key_gets_a_state_and_is_cut_to_whole_pages(self, tiny: str) -> None:
        made = caller(f"{tiny}:NeedsStates", **self.CONFIG)
        step = put(made, 7, 7, 7)
        (insert,) = asked(made, ops.Insert)
        assert (step, insert.key.tokens, insert.state is None) == (3, (7, 7), False)
        assert made.model.states.slots.keys() == set(made.model.pages)

    def test_a_key_without_a_page_needs_none(self, tiny: str) -> None:
        made = caller(f"{tiny}:NeedsStates", **self.CONFIG)
        slots = made.allocate(1)
        assert made.insert(Key((7,)), slots[:1], style=0) is not None
        assert [insert.state for insert in asked(made, ops.Insert)] == [None]

    def test_a_state_that_is_there_already_is_given_back(self, tiny: str) -> None:
        made = caller(f"{tiny}:NeedsStates", **self.CONFIG)
        put(made, 7, 7)
        put(made, 7, 7)
        assert len(asked(made, ops.FreeTrack)) == 1
        assert made.judge.model.tracks.callers == set()

    def test_nothing_is_inserted_where_there_is_no_state(self, tiny: str) -> None:
        made = caller(f"{tiny}:NeedsStates", **self.CONFIG)
        PrefixMachine.hoard_track_slots(made, quarters=4)
        assert put(made, 7, 7) is None
        assert asked(made, ops.Insert) == []

    def test_slots_that_the_search_for_a_state_evicts_are_not_inserted(self, tiny: str) -> None:
        made = caller(f"{tiny}:NeedsStates", **{**self.CONFIG, "track_slots": 1})
        put(made, 7, 7)
        slots = made.model.slots(path_of_key(Key((7, 7))))
        assert made.insert(Key((7, 7)), slots, style=0) is None
        assert len(asked(made, ops.Insert)) == 1
        assert made.judge.model.tracks.callers == set()

    @pytest.mark.parametrize("seed", range(12))
    def test_every_act_keeps_to_it(self, tiny: str, seed: int) -> None:
        machine = make_machine(PrefixMachine, f"{tiny}:NeedsStates", {**CONFIG, **self.CONFIG})
        steps = drive(machine, seed, 40).examiner.history.steps
        assert not [step for step in steps if isinstance(step.outcome.result, Failed)]

    def test_kv_whose_state_is_gone_is_not_held(self, tiny: str) -> None:
        """It was returned with one."""
        made = caller(f"{tiny}:NeedsStates", **self.CONFIG)
        put(made, 7, 7)
        put(made, 7, 7, 8, 8)
        made.do(ops.Evict(0, 1))
        gone = [handle for handle in made.live if handle.path not in made.model.states]
        assert len(gone) == 1
        for pick in range(3):
            PrefixMachine.lock_node(made, pick=pick)
        assert {hold.path.tokens for hold in made.model.holds.values()} == {(7, 7, 8, 8)}


BARE = {"page_size": 1, "window": None, "pool": "none", "slots": 8, "swa_slots": 8}


class _Resetting(PrefixCaller):
    @looked_at(needs="holds", weight=3, times=(1, 2))
    def reset(self, times: int) -> None:
        """Reset once or twice."""
        for _ in range(times):
            self.do(ops.Reset())


def test_nodes_are_looked_at_after_an_act() -> None:
    """R9: whatever the act did, once; what it needs and draws is read off the method."""
    machine: Any = make_machine(_Resetting, "radix", BARE)()
    _Resetting.reset(machine, times=2)
    done = [type(step.operation) for step in machine.examiner.history.steps]
    machine.teardown()
    assert done == [ops.Reset, ops.Reset, ops.Inspect]
    method: Any = _Resetting.reset
    assert (method.act_needs, method.act_ranges, method.act_weight) == ("holds", {"times": (1, 2)}, 3)


def test_small_draws_mean_what_there_is() -> None:
    """R5: an amount is what was drawn, the largest one everything; any draw picks something."""
    assert [amount(drawn) for drawn in (-1, 0, 11)] == [-1, 0, 11]
    assert amount(TOKENS[1]) > 32 * TOKENS[1]
    assert [picked(["a", "b"], pick) for pick in range(4)] == ["a", "b", "a", "b"]


HYBRID = {"page_size": 2, "window": None, "pool": "token", "slots": 24, "track_slots": 2}


@pytest.fixture
def machine() -> Any:
    made: Any = make_machine(PrefixMachine, "mamba", HYBRID)()
    yield made
    made.teardown()


@pytest.mark.parametrize("name", acts_of(StateActs))
def test_they_are_acts_only_where_there_are_states(name: str) -> None:
    """M1: the machine of another cache never plays them."""
    assert acts_of(PrefixMachine)[name].act_needs in ("has_states", "can_fail_states")
    other: Any = make_machine(PrefixMachine, "radix", {**HYBRID, "swa_slots": 0})()
    assert (other.has_states, other.can_fail_states) == (False, False)
    other.teardown()


WINDOWED = {"page_size": 1, "window": 4, "pool": "swa", "slots": 24, "swa_slots": 18}


class Modest(WindowedRadix):
    """The same cache, of which nothing is claimed that can be left away."""

    def claim(self) -> frozenset[str]:
        return frozenset({"pool", "swa"})


def modest_machine() -> Any:
    """Make the machine of a class that no import path leads to."""
    base = make_machine(PrefixMachine, "modest", WINDOWED)
    return type(
        "ModestMachine", (base,), {"make_adapter": classmethod(lambda cls: Modest("modest", WINDOWED))}
    )


@pytest.mark.parametrize(
    ("adapter", "changes"),
    [
        ("radix", {"window": None}),
        ("radix-window", {}),
        ("mamba", {"window": None, "pool": "token", "track_slots": 3}),
        ("chunk", {"window": None, "retains": False}),
    ],
)
def test_runs_use_every_operation_that_is_carried_out(adapter: str, changes: dict[str, Any]) -> None:
    """No act is idle: what an adapter can do is asked of it, and nothing else."""
    machine = make_machine(PrefixMachine, adapter, {**WINDOWED, **changes})
    steps = drive(machine, seed=3, steps=800).examiner.history.steps
    expected = {ops.Match, ops.Insert, ops.Evict, ops.Lock, ops.Unlock, ops.Reset, ops.Alloc, ops.Free}
    expected |= {ops.AllocTrack, ops.FreeTrack} if adapter == "mamba" else {ops.FreeSWA, ops.ReadHalves}
    if adapter != "chunk":
        expected |= {ops.Hash, ops.Inspect, ops.Fault, ops.Malformed}
    assert {type(step.operation) for step in steps} == expected
    unsupported = [step for step in steps if isinstance(step.outcome.result, Unsupported)]
    assert {type(step.operation) for step in unsupported} <= {ops.Malformed}


def test_a_modest_adapter_is_not_asked_for_more() -> None:
    """X1: what is not claimed is not tested; the run finds nothing all the same."""
    steps = drive(modest_machine(), seed=1, steps=400).examiner.history.steps
    assert not [
        step
        for step in steps
        if isinstance(step.operation, ops.Hash | ops.Inspect | ops.Fault | ops.Malformed)
    ]
    assert not [step for step in steps if isinstance(step.outcome.result, Unsupported)]
    assert {step.operation.key.extra_key for step in steps if isinstance(step.operation, ops.Match)} == {None}
    unlocks = [step.operation for step in steps if isinstance(step.operation, ops.Unlock)]
    assert unlocks
    assert all(unlock.at is None and unlock.token is None for unlock in unlocks)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_path_gets_a_second_hole(is_first: bool) -> None:
    """S1: dead, alive, dead, alive; what lives before the last hole counts for nothing behind it."""
    machine = make_machine(PrefixMachine, "radix-window", {**WINDOWED, "page_size": 1, "window": 4})()
    if not is_first:
        machine.punch_hole(10, 1, 0, 5, 1)
    machine.punch_another_hole(10, 1, 0, 3, 0)
    pages = sorted(machine.model.pages.items(), key=lambda entry: len(entry[0].tokens))
    assert [page.alive for _, page in pages] == [False] * 4 + [True, False] + [True] * 4
    results = [step.outcome.result for step in machine.examiner.history.steps]
    matched = [result.prefix_len for result in results if isinstance(result, Matched)]
    assert matched[-6:] == [0, 0, 0, 0, 0, 10]


def test_where_nothing_can_be_inserted_there_is_no_hole() -> None:
    """X4: the pool is in the caller's hands."""
    machine = make_machine(PrefixMachine, "radix-window", {**WINDOWED, "page_size": 1, "window": 4})()
    machine.allocate(18)
    machine.punch_another_hole(10, 1, 0, 3, 0)
    assert not machine.model.pages


def test_a_hole_leaves_pieces_that_are_shorter_than_a_window() -> None:
    """S1: alive, dead, alive; what ends in the last piece cannot be used before it is as long as a window."""
    machine = make_machine(PrefixMachine, "radix-window", {**WINDOWED, "page_size": 1, "window": 4})()
    machine.punch_hole(10, 1, 0, 2, 2)
    pages = sorted(machine.model.pages.items(), key=lambda entry: len(entry[0].tokens))
    assert [page.alive for _, page in pages] == [True] * 2 + [False] * 2 + [True] * 6
    results = [step.outcome.result for step in machine.examiner.history.steps]
    matched = [result.prefix_len for result in results if isinstance(result, Matched)]
    assert matched[-7:] == [2, 2, 2, 2, 8, 9, 10]
