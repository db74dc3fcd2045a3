"""The adapters of our slot allocators: what no program of tests/properties shows of them."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.own_slots import SWASlots, TokenSlots
from pymllm.adapters.registry import make_adapter
from pymllm.errors import AdapterError, InvariantViolation, ProgramError
from pymllm.history import operations as ops
from pymllm.history.outcomes import Failed, Outcome, Unsupported

KINDS = {"token": TokenSlots, "swa": SWASlots}


def make(kind: str = "token", **changes: Any) -> TokenSlots:
    config = {**KINDS[kind].CONFIGURATIONS[0], "pages": 4, **changes}
    return KINDS[kind](kind, config)


def play(adapter: TokenSlots, *operations: ops.Operation) -> list[Outcome]:
    return [adapter.apply(step, operation) for step, operation in enumerate(operations, 1)]


@pytest.mark.parametrize("form", ["int24", "int32 round"])
def test_a_form_that_there_is_not_is_not_the_allocators_fault(form: str) -> None:
    """Nothing was asked of it."""
    _, refused = play(make(), ops.Alloc(1), ops.Free((ops.Span(1, 0, 1),), form))
    assert isinstance(refused.result, Unsupported)
    assert refused.sizes == {"available_size": 3}


def test_slots_that_do_not_fit_the_dtype_are_not_the_allocators_fault() -> None:
    """-1 is no uint8, and 300 neither."""
    for span, form in (
        (ops.Span(0, -1, 0), "uint8"),
        (ops.Span(0, 300, 301), "uint8"),
        (ops.Span(0, 300, 301), "int8"),
    ):
        assert isinstance(play(make(), ops.Free((span,), form))[0].result, Unsupported)


def test_a_step_that_gave_nothing_cannot_be_named() -> None:
    """The program is at fault."""
    with pytest.raises(ProgramError, match="step 7"):
        make().apply(8, ops.Free((ops.Span(7, 0, 1),)))


@pytest.mark.parametrize("store", ["host", "device"])
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(("call", "wrong"), SWASlots.MALFORMED)
def test_a_malformed_call_is_refused(call: str, wrong: str, checked: bool, store: str) -> None:
    """X1: checked or not, and sizes stay."""
    adapter = make("swa", check_ownership=checked, store=store)
    before = adapter.sizes()
    (outcome,) = play(adapter, ops.Malformed(call, wrong))
    assert isinstance(outcome.result, Failed)
    assert outcome.result.error == ("ValueError" if wrong == "negative size" else "TypeError")
    assert outcome.sizes == before


@pytest.mark.parametrize("lacking", ["page_size", "pages", "swa_pages"])
def test_a_configuration_that_lacks_a_size_is_refused(lacking: str) -> None:
    """The message names the key."""
    config = {key: value for key, value in SWASlots.CONFIGURATIONS[0].items() if key != lacking}
    with pytest.raises(AdapterError, match=f"there is no '{lacking}' in it; one of its own is"):
        make_adapter("swa-slots", config)
    with pytest.raises(AdapterError, match=f"configuration's {lacking} is True; it must be an integer"):
        make_adapter("swa-slots", {**config, lacking: True})


def test_sizes_are_configuration_enough() -> None:
    """Sizes that are not given have the defaults of the constructors, with checks on every device."""
    adapter = TokenSlots("token", {"page_size": 2, "pages": 3})
    assert (adapter.pool.size, adapter.pool.need_sort, adapter.pool.check_ownership) == (6, True, True)


@pytest.mark.parametrize(
    "operation",
    [
        ops.Malformed("alloc", "a list"),
        ops.Malformed("free", "float size"),
        ops.Malformed("free_swa", "a list"),
        ops.Malformed("match", "a list"),
        ops.FreeSWA(()),
        ops.MoveSWA((), ()),
        ops.ReadHalves(()),
    ],
)
def test_what_cannot_be_asked_is_not_supported(operation: ops.Operation) -> None:
    """An allocator without halves has no call for them."""
    assert isinstance(play(make(), operation)[0].result, Unsupported)


@pytest.mark.parametrize("kind", KINDS)
def test_capabilities_follow_the_configuration(kind: str) -> None:
    """Unsorted pools claim no order, unchecked ones no refusals."""
    always = {"pool", "forms", "merges", "groups", "group_errors", "transfers"}
    always |= {"swa"} if kind == "swa" else set()
    assert make(kind).capabilities == always | {"sorted", "refusals"}
    assert make(kind, need_sort=False, check_ownership=False).capabilities == always


@pytest.mark.parametrize("kind", KINDS)
def test_every_store_page_size_order_and_check_is_examined(kind: str) -> None:
    """Sixteen configurations each, all different."""
    keys = ("store", "page_size", "need_sort", "check_ownership")
    seen = [tuple(config[key] for key in keys) for config in KINDS[kind].CONFIGURATIONS]
    assert len(seen) == len(set(seen)) == 16


@pytest.mark.parametrize("store", ["host", "device"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_audit_names_what_it_walked(kind: str, store: str) -> None:
    """A1, A2, A4-A7: in a group, too, whose pages an unchecked device store has not told apart."""
    adapter = make(kind, store=store, page_size=4, check_ownership=False)
    play(adapter, ops.Alloc(12), ops.BeginGroup(), ops.Free((ops.Span(1, 3, 9),)))
    assert {*adapter.audit()} == {"A1", "A2", "A4", "A6"} | ({"A7"} if kind == "swa" else set())
    assert "A5" in make(kind).audit()


@pytest.mark.parametrize("kind", KINDS)
def test_the_audit_compares_what_the_allocator_says(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A2: an answer for a slot that is not so."""
    adapter = make(kind)
    adapter.apply(1, ops.Alloc(1))
    monkeypatch.setattr(adapter.pool, "is_handed_out", lambda slots: slots < 3)
    with pytest.raises(InvariantViolation, match="A2: is_handed_out"):
        adapter.audit()


@pytest.mark.parametrize(
    ("kind", "method", "law"),
    [("token", "alloc", "A3"), ("swa", "alloc", "A3"), ("swa", "translate_to_swa", "A7")],
)
def test_slots_of_another_form_than_promised_are_noticed(
    kind: str, method: str, law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allocators hand out int32, in one dimension."""
    adapter = make(kind)
    made = getattr(adapter.pool, method)
    monkeypatch.setattr(adapter.pool, method, lambda argument: made(argument).long())
    with pytest.raises(InvariantViolation, match=f"{law}: form of the slots"):
        adapter.apply(1, ops.Alloc(1))
