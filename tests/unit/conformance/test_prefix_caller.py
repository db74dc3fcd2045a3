"""The caller's side of a prefix cache: keys from small integers, slots, handles, looks."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from pymllm.adapters.key_forms import CONTAINERS
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.prefix_caller import (
    FIRST_NUMBER,
    FORMS,
    KEPT,
    SPACES,
    STYLES,
    TAIL,
    TRUNK,
    TURN,
    PrefixCaller,
    make_key,
    spaces_of,
)
from pymllm.conformance.prefix_machine import PrefixMachine
from pymllm.history import operations as ops
from pymllm.history.operations import Key, Operation, Span
from pymllm.history.outcomes import Failed
from pymllm.oracle.prefix_pages import Space, path_of_key

PLAIN = (Space(),)


def test_styles_tell_every_space_form_and_tail_apart() -> None:
    """K1: each namespace, token width and container is drawn, with each length of tail."""
    keys = [make_key(4, 1, (), style) for style in range(STYLES)]
    assert {key.form for key in keys} == set(FORMS) == set(CONTAINERS)
    assert {path_of_key(key).space for key in keys} == set(SPACES)
    assert {len(key.tokens) for key in keys} == {4, 5, 6, 7}
    assert len({(key.extra_key, key.form, key.tokens) for key in keys}) == 4 * len(FORMS) * len(set(SPACES))


def test_spaces_that_are_easily_mixed_up_are_there() -> None:
    """K1, H3: the string and the int 1, and no namespace at all."""
    assert {Space("1"), Space(1), Space(), Space(None, 2)} <= set(SPACES)


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
    style = len(FORMS) * 3
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


class TestSlots:
    def test_whole_pages_are_taken(self) -> None:
        """A3: engines take whole pages and grow into them."""
        made = caller()
        assert made.allocate(3) == [2, 3, 4, 5]
        assert asked(made, ops.Alloc) == [ops.Alloc(4)]

    def test_what_is_missing_is_evicted(self) -> None:
        """R5, S3: as much as is missing of each half, and nothing where that is not enough."""
        made = caller(swa_slots=8)
        put(made, 1, 1, 2, 2, 3, 3)
        assert made.allocate(6) is not None
        assert asked(made, ops.Evict) == [ops.Evict(0, 4)]
        assert made.allocate(24) is None

    def test_a_plain_pool_is_short_of_one_kind(self) -> None:
        """R5: without halves, the two amounts are the same."""
        made = caller(pool="token")
        put(made, 1, 1, 2, 2, 3, 3)
        assert made.allocate(8) is not None
        assert asked(made, ops.Evict) == [ops.Evict(2, 2)]

    def test_without_a_pool_every_number_is_new(self) -> None:
        """R1: and none is a token id."""
        made = caller(pool="none")
        assert made.allocate(3) == list(range(FIRST_NUMBER, FIRST_NUMBER + 4))
        assert made.allocate(1) == [FIRST_NUMBER + 4, FIRST_NUMBER + 5]
        assert made.spans([FIRST_NUMBER + 4]) == (Span(0, FIRST_NUMBER + 4, FIRST_NUMBER + 5),)
        made.give_back([FIRST_NUMBER])
        made.free_halves([FIRST_NUMBER])
        assert made.examiner.history.steps == []

    def test_only_what_is_the_callers_is_given_back(self) -> None:
        """R4: adopted slots are the cache's."""
        made = caller()
        put(made, 1, 1)
        slots = made.allocate(6)
        made.insert(Key((1, 1, 2, 2, 9)), slots[:5], style=0)
        made.give_back(slots)
        assert made.ledger.resolve(asked(made, ops.Free)[-1].slots) == [slots[at] for at in (0, 1, 4, 5)]
        assert made.ledger.callers_slots() == []

    def test_halves_are_given_back_where_there_are_such(self) -> None:
        """A7: an engine returns what lies outside every window."""
        made = caller()
        slots = made.allocate(4)
        made.free_halves(slots[:2])
        made.free_halves([])
        assert [made.ledger.has_half(slot) for slot in slots] == [False, False, True, True]
        assert len(asked(made, ops.FreeSWA)) == 1


class TestHandles:
    def test_the_last_nodes_are_kept(self) -> None:
        """R2, R3: with the path that each ends."""
        made = caller()
        put(made, 1, 1, 2, 2)
        for _ in range(KEPT):
            made.match(Key((1, 1, 3)))
        assert len(made.handles) == KEPT
        assert {handle.path.tokens for handle in made.handles} == {(1, 1)}

    def test_a_node_is_stale_once_it_left(self) -> None:
        """X7, R5: also where its path is cached again; the root stays."""
        made = caller()
        step = put(made, 1, 1)
        root, _ = made.match(Key((9, 9)))
        made.do(ops.Evict(2))
        put(made, 1, 1)
        assert [handle.step for handle in made.stale] == [step]
        assert root in [handle.step for handle in made.live]

    def test_nothing_is_stale_for_who_does_not_refuse_it(self) -> None:
        """X1: what a stale node does there is not defined."""
        made = caller()
        put(made, 1, 1)
        made.do(ops.Reset())
        made.capabilities = frozenset()
        assert made.stale == []

    def test_holds_are_taken_and_released(self) -> None:
        """R6, S5: a hold that was refused is none."""
        made = caller()
        step = put(made, 1, 1, 2, 2, 3, 3)
        above, _ = made.match(Key((1, 1, 2, 2)))
        hold = made.lock(step)
        assert made.holds == [hold]
        made.do(ops.Evict(0, 4))
        assert made.lock(above) is None
        made.unlock(hold)
        assert (made.holds, made.released) == ([], [hold])


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

    def test_who_shows_no_nodes_is_not_asked(self) -> None:
        """R10: not claimed, not tested."""
        made = caller("chunk", window=None, pool="token", retains=False)
        made.look()
        assert made.examiner.history.steps == []


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

    def test_a_fault_is_armed(self) -> None:
        """X2: for the next operation."""
        made = caller()
        put(made, 1, 1)
        made.arm("free")
        assert asked(made, ops.Fault) == [ops.Fault("free")]
        assert made.do(ops.Evict(2)).result.error == "InjectedFault"


def test_at_the_end_everything_is_given_back() -> None:
    """E3, A2: the pool is whole again, and so the program's end is judged."""
    made = caller()
    made.lock(put(made, 1, 1, 2, 2, 3, 3))
    made.allocate(4)
    made.teardown()
    assert made.ledger.sizes()["available_size"] == 12
    assert (made.holds, made.model.pages) == ([], {})
    assert asked(made, ops.Insert)


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
        assert made.judge.books.tracks.callers == set()

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
        assert made.judge.books.tracks.callers == set()

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
