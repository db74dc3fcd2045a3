"""Containers of keys and tensors of indices."""

from __future__ import annotations

import pytest
import torch

from pymllm.adapters.key_forms import CONTAINERS, clobber, make_indices, make_radix_key, make_tokens
from pymllm.history.operations import Key
from pymllm.mem_cache.base_prefix_cache import RadixKey


@pytest.mark.parametrize("form", CONTAINERS)
def test_each_container_holds_the_same_tokens(form: str) -> None:
    """K1: containers do not matter."""
    key = make_radix_key(Key((7, 2**24), "a", form))
    assert list(key) == [7, 2**24]
    assert key.extra_key == "a"


def test_containers_are_told_apart_by_form() -> None:
    """K1: each form is another type, or another dtype."""
    made = [make_tokens(Key((1,), form=form)) for form in CONTAINERS]
    assert len({f"{type(tokens)} {getattr(tokens, 'dtype', '')}" for tokens in made}) == len(CONTAINERS)


@pytest.mark.parametrize("form", CONTAINERS)
def test_bigrams_come_in_lists_or_tuples(form: str) -> None:
    """K1: tuples as tokens stay tuples."""
    tokens = make_tokens(Key(((1, 2), (3, 4)), form=form))
    assert type(tokens) is (tuple if form == "tuple" else list)
    assert list(tokens) == [(1, 2), (3, 4)]


@pytest.mark.parametrize("form", CONTAINERS)
def test_a_clobbered_container_holds_nothing_of_the_key(form: str) -> None:
    """X5: a cache that kept the container would now hold another key; nobody can change a tuple."""
    tokens = make_tokens(Key((7, 8), form=form))
    clobber(tokens)
    assert list(RadixKey(tokens)) == ([7, 8] if form == "tuple" else [3, 3])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
@pytest.mark.parametrize("layout", ["", " strided", " 2d"])
def test_indices_have_dtype_and_layout(dtype: str, layout: str) -> None:
    """Section 0: every consumer takes any integer dtype."""
    made = make_indices([4, 5, 6], dtype + layout)
    assert made.dtype == getattr(torch, dtype)
    assert made.reshape(-1).tolist() == [4, 5, 6]
    assert made.is_contiguous() is (layout != " strided")
    assert made.dim() == (2 if layout == " 2d" else 1)


@pytest.mark.parametrize(("number", "form"), [(-1, "uint8"), (256, "uint8 2d"), (2**31, "int32 strided")])
def test_a_number_that_does_not_fit_is_not_bent(number: int, form: str) -> None:
    """Section 0: what is asked of an implementation is what the program says."""
    with pytest.raises(RuntimeError, match=f"{number}"):
        make_indices([1, number], form)


@pytest.mark.parametrize("form", ["", "integer", "int64 3d", "Tensor"])
def test_an_unknown_form_is_refused(form: str) -> None:
    """The message says which there are."""
    with pytest.raises(ValueError, match="it must be"):
        make_indices([1], form)
    with pytest.raises(ValueError, match="it must be"):
        make_tokens(Key((1,), form=form))
