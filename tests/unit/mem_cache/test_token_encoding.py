"""One encoding for every container of tokens."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.mem_cache.token_encoding import BYTES_PER_ID, decode_tokens, encode_tokens

TOKENS = [1, 2, 300, 70_000, 2**31 - 1]
RAW = np.array(TOKENS, dtype="<u4").tobytes()


@pytest.mark.parametrize(
    "tokens",
    [
        TOKENS,
        tuple(TOKENS),
        array.array("i", TOKENS),
        array.array("L", TOKENS),
        np.array(TOKENS, dtype=np.int32),
        np.array(TOKENS, dtype=np.int64),
        np.array(TOKENS, dtype=np.uint32),
        np.array(TOKENS, dtype=np.uint64),
        np.array(TOKENS, dtype=">i4"),
        np.array(TOKENS, dtype=">i8"),
        np.repeat(np.array(TOKENS), 2)[::2],
        torch.tensor(TOKENS),
        torch.tensor(TOKENS, dtype=torch.int32),
        torch.tensor(TOKENS).repeat_interleave(2)[::2],
        [np.int64(token) for token in TOKENS],
    ],
)
def test_every_container_gives_the_same_bytes(tokens: Any) -> None:
    """K1: the same tokens are the same key, whatever holds them, contiguous or not."""
    assert encode_tokens(tokens) == (RAW, 1)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_narrow_arrays_widen(dtype: Any) -> None:
    """K1: any integer dtype will do."""
    assert encode_tokens(np.array([1, 2], dtype=dtype)) == encode_tokens([1, 2])


@pytest.mark.parametrize("bigrams", [[(1, 2), (3, 4)], ((1, 2), (3, 4)), [(1, 2), (np.int64(3), 4)]])
def test_wide_tokens_encode_element_by_element(bigrams: Any) -> None:
    """K1: tuples of one length, of two or more."""
    assert encode_tokens(bigrams) == (encode_tokens([1, 2, 3, 4])[0], 2)


@pytest.mark.parametrize("container", [list, tuple, np.array, torch.tensor])
def test_unaligned_tail_is_cut(container: Any) -> None:
    """R1: only whole pages are encoded."""
    assert encode_tokens(container([1, 2, 3, 4, 5]), page_size=2) == encode_tokens([1, 2, 3, 4])
    assert encode_tokens(container([1]), page_size=2) == (b"", 1)


def test_tail_of_wide_tokens_is_cut_in_tokens() -> None:
    """R1: pages count tokens, not the integers in them."""
    assert encode_tokens([(1, 2), (3, 4), (5, 6)], page_size=2) == encode_tokens([(1, 2), (3, 4)])


@pytest.mark.parametrize("empty", [[], (), array.array("I"), np.array([]), torch.tensor([])])
def test_empty_key_has_no_bytes(empty: Any) -> None:
    """R3: an empty key is a key, even where NumPy and torch make an empty list a float array."""
    assert encode_tokens(empty) == (b"", 1)


@pytest.mark.parametrize("width", [1, 3])
def test_decoding_returns_the_tokens(width: int) -> None:
    """K1: what was encoded comes back, in its shape, over the same bytes and read-only."""
    table = np.arange(12, dtype=np.uint32).reshape(-1, width)
    decoded = decode_tokens(*encode_tokens(list(map(tuple, table.tolist())) if width > 1 else table[:, 0]))
    assert decoded.tolist() == (table if width > 1 else table[:, 0]).tolist()
    assert not decoded.flags.writeable
    assert decoded.nbytes == 12 * BYTES_PER_ID


def test_encoding_is_a_copy() -> None:
    """X5: the caller may overwrite its array afterwards."""
    tokens = np.array([1, 2, 3], dtype=np.uint32)
    raw, _ = encode_tokens(tokens)
    tokens[:] = 9
    assert raw == encode_tokens([1, 2, 3])[0]


@pytest.mark.parametrize("token", [-1, 2**32, 2**63 - 1])
@pytest.mark.parametrize(
    "container",
    [
        list,
        lambda tokens: np.array(tokens, dtype=np.int64),
        lambda tokens: np.array([tokens, tokens], dtype=np.int64).T[:, 0],
        lambda tokens: array.array("q", tokens),
        torch.tensor,
    ],
)
def test_token_outside_32_bits_is_named(container: Any, token: int) -> None:
    """H1, X1: the error names the token."""
    with pytest.raises(ValueError, match=f"token {token} "):
        encode_tokens(container([1, token]))


def test_the_largest_token_is_none_of_those_outside() -> None:
    """H1, X1: the error names the one behind it."""
    with pytest.raises(ValueError, match=f"token {2**32} "):
        encode_tokens(np.array([2**32 - 1, 2**32]))


def test_token_beyond_the_tail_is_checked_too() -> None:
    """X1: bad input is bad wherever it stands."""
    with pytest.raises(ValueError, match="-5"):
        encode_tokens(np.array([1, 2, -5]), page_size=2)


@pytest.mark.parametrize(
    "tokens", [np.array([1.5]), torch.tensor([1.5]), np.array([], dtype=bool), ["a"], [1.5]]
)
def test_tokens_that_are_no_integers_are_refused(tokens: Any) -> None:
    """X1: floats, strings and flags are no tokens."""
    with pytest.raises(TypeError, match="integer"):
        encode_tokens(tokens)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([5, np.array([1, 2])], r"token_ids\[1\] has array\(\[1, 2\]\)"),
        ([np.array([7])], r"token_ids\[0\] has array\(\[7\]\)"),
        ([torch.tensor([1, 2])], r"token_ids\[0\] has tensor\(\[1, 2\]\)"),
        ([torch.tensor([7])], r"token_ids\[0\] has tensor\(\[7\]\)"),
        ([torch.tensor([[7]])], r"token_ids\[0\] has tensor\(\[\[7\]\]\)"),
        (
            [[1, 2, 3]],
            r"token_ids\[0\] has \[1, 2, 3\]: .*; of a batch of prompts give one, as token_ids\[0\]",
        ),
        ([[1], [2, 3]], r"token_ids\[0\] has \[1\]: .*; of a batch of prompts give one"),
        ([5, []], r"token_ids\[1\] has \[\]: .*; of a batch of prompts give one"),
        ([[True], [False]], r"token_ids\[0\] has \[True\]"),
        ([None, 5], r"token_ids\[0\] has None: tokens are integers, or tuples of them of one length$"),
        ([b"ab"], r"token_ids\[0\] has b'ab'"),
        (list(torch.zeros(2, 2)), r"token_ids\[0\] has tensor\(\[0., 0.\]\)"),
        ([torch.tensor(1.5)], r"token_ids\[0\] has tensor\(1.5000\)"),
        ([(1, 2), (3, np.array([4, 5]))], r"token_ids\[1\] has array\(\[4, 5\]\)"),
        ([2, "x" * 500], r"token_ids\[1\] has 'x{,20}\.\.\.x{,20}':"),
    ],
)
def test_an_element_that_is_no_integer_is_named_with_its_place(tokens: Any, words: str) -> None:
    """K1, X1: arrays and tensors inside a list are no tokens, even where they have an ``__index__``."""
    with pytest.raises(TypeError, match=words):
        encode_tokens(tokens)


@pytest.mark.parametrize(
    ("tokens", "place"),
    [
        ([True], 0),
        ([0, 1, False], 2),
        ((7, torch.tensor(True)), 1),
        ([7, np.True_], 1),
        ([(1, 0), (1, True)], 1),
    ],
)
def test_a_flag_is_no_token(tokens: Any, place: int) -> None:
    """K1, X1: refused in a list as it is in an array; a key of comparisons is a slip."""
    with pytest.raises(TypeError, match=rf"token_ids\[{place}\] has .*(True|False)"):
        encode_tokens(tokens)


class Numbered:
    """Knows a number and nothing else, as `__index__` alone allows."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number


def test_whatever_has_a_number_is_a_token() -> None:
    """K1: elements are read by ``__index__``; one that is too large is named as any other."""
    assert encode_tokens([1, Numbered(2)]) == encode_tokens([1, 2])
    with pytest.raises(ValueError, match="token 1099511627776 "):
        encode_tokens([1, Numbered(2**40)])


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (torch.ones(2, dtype=torch.bfloat16), "dtype torch.bfloat16: tokens are integers"),
        (torch.ones(2, dtype=torch.complex64).conj(), "dtype torch.complex64: tokens are integers"),
        (torch.empty(0, dtype=torch.bool), "dtype torch.bool: tokens are integers"),
        (torch.tensor([1, 2]).to_sparse(), "layout torch.sparse_coo: give a dense tensor"),
        (torch.arange(3, device="meta"), "meta device, which holds no numbers: give the tokens themselves"),
    ],
)
def test_a_tensor_that_holds_no_tokens_is_named_in_our_words(tokens: torch.Tensor, words: str) -> None:
    """X1: also where NumPy does not know the dtype."""
    with pytest.raises(TypeError, match=words):
        encode_tokens(tokens)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_is_no_key() -> None:
    """K1, X1: it has no shape that a message could show."""
    batch = torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3])])
    with pytest.raises(TypeError, match=r"a nested tensor: give one of its rows, token_ids\[0\]"):
        encode_tokens(batch)


def test_an_error_of_the_copy_to_the_host_passes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: a device that fails is no fault of the tokens."""

    def fail(tokens: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch.Tensor, "cpu", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        encode_tokens(torch.arange(3))


@pytest.mark.parametrize(
    "tokens",
    [
        *(None, 5, "abc", b"abc", bytearray(b"abc"), memoryview(b"abc")),
        *({1, 2}, frozenset({1}), {1: 2}.keys(), {1: 2}, range(3), iter([1, 2]), (token for token in [1, 2])),
        *(np.int64(5), np.float64(5.0)),
    ],
)
def test_other_containers_are_refused(tokens: Any) -> None:
    """X1: the error names the type and what to give."""
    with pytest.raises(TypeError, match=type(tokens).__name__):
        encode_tokens(tokens)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([(1, 2), (3,)], r"token_ids\[1\] has \(3,\) where token_ids\[0\] has a tuple of 2: .* width"),
        ([(1, 2), (5, 6), 3], r"token_ids\[2\] has 3 where token_ids\[0\] has a tuple of 2: .* width"),
        ([(1, 2), [3, 4]], r"token_ids\[1\] has \[3, 4\] where .* width"),
        ([(1, 2), ()], r"token_ids\[1\] has \(\) where .* width"),
        (((1, 2, 3), (1, 2)), r"token_ids\[1\] has \(1, 2\) where token_ids\[0\] has a tuple of 3"),
        ([()], r"token_ids\[0\] has \(\): tuples have two integers or more"),
        ([(5,), (6,)], r"token_ids\[0\] has \(5,\): .* give plain integers for a width of 1"),
        (((5,),), r"token_ids\[0\] has \(5,\): tuples have two integers or more"),
    ],
)
def test_tuples_of_one_number_or_of_several_lengths_are_refused(tokens: Any, words: str) -> None:
    """K1: one key has one token width; a token of one integer is that integer."""
    with pytest.raises(ValueError, match=words):
        encode_tokens(tokens)


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["array", "tensor"])
@pytest.mark.parametrize("kind", ["int64", "int32", "uint32", "uint8"])
@pytest.mark.parametrize("shape", [(), (1, 5), (5, 1), (4, 2), (2, 2, 2), (3, 0), (1, 0), (0, 2)])
def test_only_one_dimension_is_a_sequence(make: Any, kind: str, shape: tuple[int, ...]) -> None:
    """K1, X1: a tokenizer's batch of shape (1, n) must not become one token of width n."""
    tokens = make(shape, dtype=getattr(torch if make is torch.zeros else np, kind))
    with pytest.raises(ValueError, match=r"token_ids has shape \(") as caught:
        encode_tokens(tokens)
    says = str(caught.value)
    assert str(shape) in says
    assert all(
        way in says for way in ("(token_ids[0])", "(token_ids.flatten())", "tuple, token_ids.tolist()")
    )
    assert encode_tokens(tokens.flatten())[1] == 1
    if len(shape) == 2 and shape[1] > 1:
        assert encode_tokens(list(map(tuple, tokens.tolist())))[1] == (shape[1] if shape[0] else 1)


def test_a_number_that_python_will_not_write_is_named_by_its_size() -> None:
    """X1: the message is ours, and short."""
    with pytest.raises(ValueError, match="token of 20001 bits is outside"):
        encode_tokens([1, 2**20_000])


@pytest.mark.parametrize("kind", [np.uint32, np.int64, np.uint16])
def test_array_is_cut_down_to_whole_pages(kind: type[np.integer[Any]]) -> None:
    """K1: the tokens after the last whole page are left out, whichever way the array is read."""
    for length in range(7):
        raw, width = encode_tokens(np.arange(length, dtype=kind), 3)
        assert (decode_tokens(raw, width).tolist(), width) == (list(range(length // 3 * 3)), 1)


def test_strided_array_is_read_in_its_order() -> None:
    """K1: every other token of a buffer is a key of its own."""
    assert encode_tokens(np.arange(8, dtype=np.uint32)[::2])[0] == encode_tokens([0, 2, 4, 6])[0]
