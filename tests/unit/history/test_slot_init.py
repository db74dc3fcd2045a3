"""Records that are built through their slots are the records that they were."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from pymllm.history.slot_init import built_through_slots


@built_through_slots
@dataclass(frozen=True, slots=True)
class Quick:
    """One of each sort of field."""

    number: int
    name: str = "none"
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plain:
    """The same, built as dataclasses are."""

    number: int
    name: str = "none"
    sizes: dict[str, int] = field(default_factory=dict)


@built_through_slots
@dataclass(frozen=True, slots=True)
class Empty:
    """Without any field."""


@pytest.mark.parametrize(
    ("values", "named"),
    [((1,), {}), ((1, "a"), {}), ((), {"sizes": {"x": 1}, "number": 2}), ((1, "a", {}), {})],
)
def test_fields_are_set_as_before(values: tuple[int, ...], named: dict[str, object]) -> None:
    """By place and by name, defaults included."""
    quick, plain = Quick(*values, **named), Plain(*values, **named)  # type: ignore[arg-type]
    assert (quick.number, quick.name, quick.sizes) == (plain.number, plain.name, plain.sizes)
    assert repr(quick) == repr(plain).replace("Plain", "Quick")
    assert Empty() == Empty()


def test_what_is_made_for_a_default_is_not_shared() -> None:
    """Each record has a dict of its own."""
    one, other = Quick(1), Quick(1)
    one.sizes["x"] = 1
    assert other.sizes == {}


def test_a_record_stays_frozen_comparable_and_copyable() -> None:
    """Nothing but the way in which it is built is another."""
    quick = Quick(1, "a")
    with pytest.raises(FrozenInstanceError):
        quick.number = 2  # type: ignore[misc]
    assert quick == Quick(1, "a") != Quick(2, "a")
    assert replace(quick, number=3) == Quick(3, "a")
    assert pickle.loads(pickle.dumps(quick)) == copy.deepcopy(quick) == quick


@pytest.mark.parametrize(("values", "named"), [((), {}), ((1, "a", {}, 4), {}), ((1,), {"other": 2})])
def test_wrong_arguments_are_refused(values: tuple[int, ...], named: dict[str, int]) -> None:
    """As of any call."""
    with pytest.raises(TypeError, match="__init__"):
        Quick(*values, **named)  # type: ignore[arg-type]


def test_arguments_are_told_as_before() -> None:
    """Names and annotations, for whoever asks."""
    assert [*inspect.signature(Quick).parameters] == ["number", "name", "sizes"]
    assert Quick.__init__.__annotations__ == Plain.__init__.__annotations__
