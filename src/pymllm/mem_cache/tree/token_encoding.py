"""The encoding of token ids, from any documented container, as bytes.

The trees compare, file and hash keys as little-endian 32-bit unsigned integers, the encoding that
`hash_token_ids` documents. One encoding for all keys means that a list, an ``int64`` array and a
tensor of the same tokens are the same key, and that comparing two keys is one ``memcmp``.
"""

from __future__ import annotations

import operator
from array import array
from io import BytesIO
from itertools import chain
from reprlib import repr as short_repr
from typing import Any, Final

import numpy as np
import torch

from pymllm.mem_cache.arguments import INTEGER_DTYPES, refuse_masked

BYTES_PER_ID: Final = 4
_MAX_ID: Final = 0xFFFF_FFFF
_LITTLE_U32: Final = np.dtype("<u4")
_LITTLE_I32: Final = np.dtype("<i4")
_INT64: Final = np.dtype(np.int64)
_WIDE: Final = np.dtype(np.uint64)
_ARRAY: Final = np.ndarray
_UINTC: Final = np.dtype(np.uintc)
_SHORT: Final = 4096 if np.lib.NumpyVersion(np.__version__) >= "2.4.0" else -1
"""The number of tokens up to which a checked cast is faster than a search for the largest."""
_LONG: Final = 16_384  # tokens: from here on a second copy costs more than a `BytesIO`


def encode_tokens(token_ids: Any, page_size: int = 1) -> tuple[bytes, int]:
    """Return the whole pages of a key as bytes.

    ``token_ids``: integers in ``0 .. 2**32 - 1``, shape ``(n,)``; or, in a list or tuple, tuples of ``width``
    such integers, two or more. Tensors may live on any device. Cost: for arrays and CPU tensors a range check
    and one copy, all vectorised; for lists one C loop, and one step of Python for each 0 and 1.
    ``array("I", list)`` is the fastest conversion of a list that checks the range: 0.7 ms for 131,072 tokens,
    where NumPy takes 2.1 ms and ``struct`` 1.7 ms. A CUDA tensor is copied to the host first. Laws: K1, H1.
    """
    if type(token_ids) is _ARRAY:
        ids = token_ids
    elif isinstance(token_ids, array):
        is_wide = token_ids.typecode == "q"
        ids = _ARRAY(len(token_ids), _INT64, token_ids) if is_wide else np.asarray(token_ids)
    elif isinstance(token_ids, (list, tuple)):
        raw, width = _encode_sequence(token_ids)
        surplus = len(token_ids) % page_size
        return (raw[: len(raw) - surplus * width * BYTES_PER_ID] if surplus else raw), width
    elif isinstance(token_ids, torch.Tensor):
        ids = _as_array(token_ids)
    elif isinstance(token_ids, np.ndarray):
        ids = np.asarray(refuse_masked("token_ids", token_ids))
    else:
        raise TypeError(
            f"token_ids is a {type(token_ids).__name__}: "
            "give a list, tuple, array.array, NumPy array or tensor of integers"
        )
    if ids.dtype is _INT64 and ids.ndim == 1 and ids.size <= _SHORT:
        # Here rather than below, where everything else is, and to the end: 0.3 us less for each short key.
        try:
            raw = ids.astype(_LITTLE_U32, casting="same_value").tobytes()
        except ValueError:
            pass  # said below, with the number
        else:
            surplus = len(raw) % (BYTES_PER_ID * page_size)
            return (raw[:-surplus] if surplus else raw), 1
    if ids.dtype is not _LITTLE_U32 or ids.ndim != 1:
        return _encode_array(ids, page_size), 1
    surplus = ids.size % page_size
    return (ids[:-surplus] if surplus else ids).tobytes(), 1


def decode_tokens(raw: bytes, width: int) -> np.ndarray:
    """Return encoded tokens as a read-only array over the same bytes.

    Returns ``uint32``, shape ``(n,)`` for ``width == 1``, else ``(n, width)``; nothing is copied.
    """
    ids = np.frombuffer(raw, dtype=_LITTLE_U32)
    return ids if width == 1 else ids.reshape(-1, width)


def _encode_array(ids: np.ndarray, page_size: int) -> bytes:
    """Return the whole pages of integers, shape ``(n,)``, as bytes; raise an error if one does not fit.

    Seen as unsigned, a negative number is huge, so that one look at the largest finds both ends. Of NumPy's
    reductions `argmax` begins soonest and is as quick as any: 0.2 us for 64 tokens, where `max` takes 1.0.
    """
    dtype = ids.dtype
    if dtype.kind not in "iu" and (ids.size or dtype.kind == "b"):
        raise _no_integer_dtype(dtype)  # but for an empty list, which NumPy makes a float array
    if ids.ndim != 1:
        raise ValueError(
            f"token_ids has shape {ids.shape}, a key is one sequence: "
            "give one row of a batch (token_ids[0]), or all as one (token_ids.flatten()); "
            "tokens of several integers are a list of tuples (list(map(tuple, token_ids.tolist())))"
        )
    fits = True
    if ids.size and dtype.itemsize > BYTES_PER_ID:
        wide = ids.view(_WIDE) if dtype.isnative else ids.astype(_WIDE)
        fits = wide.item(wide.argmax()) <= _MAX_ID
    elif ids.size and dtype.kind == "i":
        fits = ids.item(ids.argmin()) >= 0
    if not fits:
        raise _out_of_range(ids[(ids < 0) | (ids > _MAX_ID)].item(0))
    whole = ids[: ids.size - ids.size % page_size]
    if dtype == _LITTLE_I32:
        return whole.tobytes()  # the same bits, now that none is negative
    if whole.size < _LONG:
        return whole.astype(_LITTLE_U32).tobytes()
    # Cast into the bytes that are handed out: of 131,072 tokens 25 us, where a cast and a copy take 33, and
    # 400 in a process in which the C library gives so much memory back to the system after each key.
    room = BytesIO(bytes(BYTES_PER_ID * whole.size))
    np.frombuffer(room.getbuffer(), _LITTLE_U32)[:] = whole
    return room.getvalue()


def _as_array(token_ids: torch.Tensor) -> np.ndarray:
    if token_ids.dtype not in INTEGER_DTYPES:
        # NumPy does not know all of torch's dtypes, so this is not left to it.
        if token_ids.numel() or token_ids.dtype is torch.bool:
            raise _no_integer_dtype(token_ids.dtype)
        token_ids = token_ids.to(torch.int64)  # torch makes an empty list a float tensor
    if token_ids.layout is not torch.strided:
        raise TypeError(f"token_ids has layout {token_ids.layout}: give a dense tensor of integers")
    try:
        return (token_ids if token_ids.is_cpu else token_ids.cpu()).numpy()
    except (NotImplementedError, RuntimeError):
        # Looked at only here: each of the two would add 30 ns to every key.
        if token_ids.is_nested:
            raise TypeError("token_ids is a nested tensor: give one of its rows, token_ids[0]") from None
        if token_ids.is_meta:
            raise TypeError(
                "token_ids is on the meta device, which holds no numbers: give the tokens themselves"
            ) from None
        raise


def _encode_sequence(token_ids: list[Any] | tuple[Any, ...]) -> tuple[bytes, int]:
    if not token_ids:
        return b"", 1
    first = token_ids[0]
    if type(first) is not int:
        if isinstance(first, tuple):
            return _encode_tuples(token_ids, len(first))
        if isinstance(first, torch.Tensor) and first.ndim:
            raise _no_integer(first, 0)  # a batch of prompts; one of a single token has an `__index__`
    return _pack(token_ids, 1), 1


def _encode_tuples(token_ids: list[Any] | tuple[Any, ...], width: int) -> tuple[bytes, int]:
    if width < 2:
        raise ValueError(
            f"token_ids[0] has {short_repr(token_ids[0])}: tuples have two integers or more, the width of a "
            "token; give plain integers for a width of 1"
        )
    widths = [len(token) if isinstance(token, tuple) else 0 for token in token_ids]
    if widths.count(width) != len(widths):
        place = next(place for place, found in enumerate(widths) if found != width)
        raise ValueError(
            f"token_ids[{place}] has {short_repr(token_ids[place])} "
            f"where token_ids[0] has a tuple of {width}: one key has one token width, give a key for each"
        )
    return _pack(list(chain.from_iterable(token_ids)), width), width


def _pack(ids: list[Any] | tuple[Any, ...], width: int) -> bytes:
    """Return integers, at least one, as bytes, or raise an error for the first that is no integer."""
    try:
        packed = array("I", ids)
    except (OverflowError, TypeError):
        faults = (_fault_of(token, place // width) for place, token in enumerate(ids))
        raise next(fault for fault in faults if fault) from None
    # A bool packs as 0 or 1, so only those are looked at: 0.5 us for 64 tokens, 5.5 us for 131,072 (the
    # minimum), where the types of all elements would take 1.4 us and 2.5 ms.
    numbers = _ARRAY(len(packed), _UINTC, packed)
    if numbers.item(numbers.argmin()) <= 1:
        _refuse_flags(ids, np.flatnonzero(numbers <= 1).tolist(), width)
    return packed.tobytes() if _IS_NATIVE else numbers.astype(_LITTLE_U32).tobytes()


def _fault_of(token: Any, place: int) -> TypeError | ValueError | None:
    try:
        number = operator.index(token)
    except TypeError:
        return _no_integer(token, place)
    return None if 0 <= number <= _MAX_ID else _out_of_range(number)


def _refuse_flags(ids: list[Any] | tuple[Any, ...], places: list[int], width: int) -> None:
    for place in places:
        token = ids[place]
        if isinstance(token, bool) or (isinstance(token, torch.Tensor) and token.dtype is torch.bool):
            raise _no_integer(token, place // width)


def _no_integer(token: Any, place: int) -> TypeError:
    way_out = "tokens are integers, or tuples of them of one length"
    if isinstance(token, list) or (isinstance(token, (np.ndarray, torch.Tensor)) and token.ndim):
        way_out += f"; of a batch of prompts give one, as token_ids[{place}]"
    return TypeError(f"token_ids[{place}] has {short_repr(token)}: {way_out}")


def _no_integer_dtype(dtype: np.dtype[Any] | torch.dtype) -> TypeError:
    return TypeError(f"token_ids has dtype {dtype}: tokens are integers, give an integer dtype")


def _out_of_range(token: Any) -> ValueError:
    number = int(token)
    # Python itself refuses to write a number of more than 4,300 digits.
    shown = f"{number}" if number.bit_length() <= 128 else f"of {number.bit_length()} bits"
    return ValueError(f"token {shown} is outside 0 .. 2**32 - 1: fold larger ids into 32 bits first")


_IS_NATIVE: Final = _LITTLE_U32.isnative and array("I").itemsize == BYTES_PER_ID
