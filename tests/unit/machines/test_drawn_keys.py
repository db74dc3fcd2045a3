"""Tests of faults that only some keys or numbers show: wide nodes, token 0, an empty namespace, worker 0."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest

from pymllm.adapters.own_index import IndexDict
from pymllm.adapters.own_requests import Requests
from pymllm.adapters.registry import find_adapter
from pymllm.history.operations import AddRequest, FindBlocks, Key, RunStep, StoreBlocks
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.prefix_caller import ALPHABETS, OTHER_SPACES, STYLES, make_wide_key
from pymllm.machines.registry import CI
from pymllm.machines.requests import RequestMachine
from pymllm.oracle.models.prefix_model import Space, path_of_key
from pymllm.oracle.verdicts import Verdict
from pymllm.search.runner import verify
from pymllm.search.tasks import VerifyPlan
from tests.unit.machines.test_honest_shapes import YoungestPages, prefixes


class Spaced(YoungestPages):
    """Keeps namespaces apart: each token of a key stands beside its namespace."""

    def claim(self) -> frozenset[str]:
        return frozenset({"pool", "extra_key"})

    def spell(self, key: Key) -> Key:
        return Key(tuple((key.extra_key, token) for token in key.tokens))  # type: ignore[misc]

    def match(self, key: Key) -> Any:
        return super().match(self.spell(key))

    def insert(self, key: Key, slots: list[int]) -> Any:
        return super().insert(self.spell(key), slots)


class ThirdChild(YoungestPages):
    """Drops the oldest child when a third one comes."""

    def insert(self, key: Key, slots: list[int]) -> Any:
        for end in prefixes(key.tokens):
            beside = [it for it in self.slots if it[:-1] == end[:-1]]
            if end not in self.slots and len(beside) == 2:
                for lost in [it for it in self.slots if it[: len(end)] == beside[0]]:
                    del self.slots[lost]
        return super().insert(key, slots)


class LeakBesideThree(YoungestPages):
    """Loses the slot of a page that goes and leaves three beside it."""

    def drop(self, gone: list[Any]) -> int:
        if len(gone) == 1 and self.below()[gone[0][:-1]] >= 4:
            del self.slots[gone[0]]
            return 1
        return super().drop(gone)


class NoTokenZero(Spaced):
    """Takes token 0 for the end of a key, but at its front."""

    def known(self, tokens: Any) -> list[Any]:
        return [*takewhile(lambda it: len(it) == 1 or it[-1][1], super().known(tokens))]


class NoEmptyNamespace(Spaced):
    """Takes an empty namespace for none."""

    def spell(self, key: Key) -> Key:
        return super().spell(Key(key.tokens, key.extra_key or None))


class NoParentZero(IndexDict):
    """Takes the block whose hash is 0 for no parent."""

    def do_store_blocks(self, step: int, operation: StoreBlocks) -> Any:
        return super().do_store_blocks(step, replace(operation, parent=operation.parent or None))


class NoWorkerZero(IndexDict):
    """Does not tell that worker 0 has blocks."""

    def do_find_blocks(self, step: int, operation: FindBlocks) -> Any:
        told = super().do_find_blocks(step, operation)
        return replace(told, workers=tuple(it for it in told.workers if it[0]))


def verdict(cache: type, seed: int) -> Verdict:
    """Search as `pymllm verify` does by default, without making smaller what it finds."""
    entry = find_adapter(f"{__name__}:{cache.__name__}")
    report = verify(VerifyPlan((entry,), (), replace(CI, shrinks=1), seed, None, 0))
    return report.adapters[0].verdict


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    "cache",
    [ThirdChild, LeakBesideThree, NoTokenZero, NoEmptyNamespace, NoParentZero, NoWorkerZero],
    ids=lambda it: it.__name__,
)
def test_a_fault_that_only_some_keys_show_is_found_by_default(cache: type, seed: int) -> None:
    """R2, R3, R5, K1, I1: with any seed, in the time that the profile gives."""
    assert verdict(cache, seed) is Verdict.VIOLATED


def test_the_cache_without_these_faults_passes() -> None:
    """The same keys, and no accusation."""
    assert verdict(Spaced, 0) is Verdict.HOLDS


def test_requests_are_of_token_0_and_of_large_ones_too() -> None:
    """C1, E1: in prompts, and as what a step produces."""
    machine = make_machine(RequestMachine, "requests", Requests.CONFIGURATIONS[0])
    steps = [step.operation for seed in range(6) for step in drive(machine, seed, 60).examiner.history.steps]
    prompts = {token for it in steps if isinstance(it, AddRequest) for token in it.tokens}
    produced = {token for it in steps if isinstance(it, RunStep) for token in it.next_tokens}
    assert prompts >= {0, 1, 2, 3, 4, 1 + 2**16, 1 + 2**31}
    assert produced >= {0, 1, 2, 3, 1 + 2**16}


wide = [tokens for tokens in ALPHABETS if tokens]


@pytest.mark.parametrize("tokens", wide, ids=str)
@pytest.mark.parametrize("page_size", [1, 4])
def test_wide_keys_branch_at_one_node_for_every_token(tokens: tuple[int, ...], page_size: int) -> None:
    """R9: at the root, and below the first page; none is longer than three pages and a tail."""
    keys = [
        make_wide_key(page_size, pages, (turn, other), 0, tokens).tokens
        for pages in range(4)
        for turn in range(13)
        for other in range(13)
    ]
    assert max(map(len, keys)) == 3 * page_size
    trunk = (tokens[0],) * page_size
    for above in ((), trunk):
        below = {key[len(above) :][:page_size] for key in keys if key[: len(above)] == above and key != above}
        assert {token for page in below for token in page} == set(tokens)
        assert len(below) >= len(tokens)


def test_wide_keys_have_empty_namespaces_and_containers_that_hold_them() -> None:
    """K1: 0, "0" and "" are three namespaces; a token of 32 bits does not go where 31 fit."""
    keys = [
        make_wide_key(1, 2, (0, other), style, tokens)
        for tokens in wide
        for style in range(STYLES)
        for other in range(13)
    ]
    assert {path_of_key(key).space for key in keys} == set(OTHER_SPACES)
    assert {Space(""), Space(0), Space("0")} < set(OTHER_SPACES)
    large = {
        key.form for key in keys if max(it if isinstance(it, int) else it[0] for it in key.tokens) >= 2**31
    }
    assert large == {"list", "tuple", "array", "int64", "tensor64"}
