"""The base class of machines that drive pools, and the machines of KV buffers and of keys and hashes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from pymllm.history import operations as ops
from pymllm.history.operations import DIMENSIONS, Key, Namespace, Operation, Span, Token, namespace_of
from pymllm.history.outcomes import Hashes, Outcome
from pymllm.history.spans import GivenNumbers
from pymllm.machines.acting import ActingMachine, act
from pymllm.machines.determinism import check_determinism
from pymllm.oracle.models.buffers import BufferModel

SEED = (0, 9_999)
INDEX_FORMS = ("int64", "int32", "int16", "uint8", "int64 strided", "int32 strided")
"""One-dimensional index tensors: every signed dtype, and the unsigned one for small numbers."""


def index_form(source: random.Random, numbers: Sequence[int]) -> str:
    """Return a form of index tensor that can hold the numbers."""
    low, high = min(numbers, default=0), max(numbers, default=0)
    forms = INDEX_FORMS if high < 256 else INDEX_FORMS[:2]
    return source.choice([form for form in forms if low >= 0 or form != "uint8"])


def pick(numbers: Sequence[int], start: int, count: int) -> list[int]:
    """Return up to ``count`` distinct items from a position on, cyclically, forwards or backwards."""
    turned = [numbers[(start + place) % len(numbers)] for place in range(min(count, len(numbers)))]
    return turned if start % 2 else turned[::-1]


def name_numbers(
    numbers: Iterable[int], given: GivenNumbers, is_given: Callable[[int], bool]
) -> tuple[Span, ...]:
    """Return spans for numbers: by the steps that gave them, or by the numbers themselves."""
    return tuple(
        span
        for number in numbers
        for span in (given.name((number,)) if is_given(number) else (Span(0, number, number + 1),))
    )


def malformed_calls(**wrong: Iterable[str]) -> tuple[ops.Malformed, ...]:
    """Return calls that no caller may make, each by the name of its mistake."""
    return tuple(ops.Malformed(call, what) for call, whats in wrong.items() for what in whats)


class PoolMachine(ActingMachine):
    """The base class of machines of pools: a refused call must leave no trace, a clear must renew all."""

    # Calls that no caller may make; an adapter passes over those that it cannot make.
    MALFORMED: ClassVar[Sequence[ops.Malformed]] = ()

    def observe(self) -> None:
        """Read all state that the last operation could have changed."""

    def ask(self, operation: Operation) -> Outcome:
        """Carry out an operation, and read all state that it could have changed."""
        outcome = self.do(operation)
        self.observe()
        return outcome

    @act(needs="can_refuse", which=(0, 63))
    def call_malformed(self, which: int) -> None:
        """Make a call that no caller may make."""
        self.ask(self.MALFORMED[which % len(self.MALFORMED)])

    def end(self) -> None:
        """Run parts of the program again on new adapters, in some runs."""
        if self.is_replayed:
            self._watched(lambda: check_determinism(self.examiner, self.make_adapter))


Rows = tuple[tuple[int, ...], ...]

SHAPES = ("heads", "flat", "strided", "batch")


class BufferMachine(PoolMachine):
    """The machine that drives the KV buffers of every layer (P3, X1, E5)."""

    MALFORMED = malformed_calls(
        write_kv=(
            *("keys of another dtype", "values of another dtype"),
            *("keys on another device", "keys of one dimension"),
            *("one element for a key", "one value for all slots", "float indices", "bool indices"),
            *("a list of keys", "a list of indices", "a float layer", "a bool layer"),
        ),
        read_kv=("a float layer", "no layer"),
    )

    model: BufferModel

    def begin(self) -> None:
        """Read the sizes of the buffers."""
        self.model = self.judge.model

    def observe(self) -> None:
        """Read every layer."""
        for layer in range(self.model.layers):
            self.do(ops.ReadKV(layer))

    @act(weight=3, layer=(0, 2), tokens=(0, 4), padding=(0, 3), shape=(0, 3), seed=SEED)
    def write(self, layer: int, tokens: int, padding: int, shape: int, seed: int) -> None:
        """Write some tokens and some padding rows, in shuffled order."""
        source = random.Random(seed)
        slots = self._slots(source, tokens, padding)
        self._write(layer % self.model.layers, slots, *self._contents(source, len(slots)), shape, source)

    @act(weight=2, layer=(0, 2), first=(0, 12), onto=(1, 12), count=(1, 4))
    def move(self, layer: int, first: int, onto: int, count: int) -> None:
        """Move rows inside the buffers, also onto rows that are moved themselves."""
        rows = self.model.rows
        first, onto = first % rows, max(onto % rows, 1)
        self.ask(ops.MoveKV(layer % self.model.layers, first, onto, min(count, rows - first, rows - onto)))

    @act(needs="can_refuse", weight=3, tokens=(0, 3), twist=(0, 8), shape=(0, 3), seed=SEED)
    def write_badly(self, tokens: int, twist: int, shape: int, seed: int) -> None:
        """Write rows with one mistake in the arguments.

        A wrong slot comes last: a pool that writes before it has checked all slots is then seen.
        """
        source = random.Random(seed)
        slots = self._slots(source, tokens, 0)
        layer = {0: -1, 1: self.model.layers}.get(twist, 0)
        if twist in (2, 3):
            slots.append(-1 if twist == 2 else self.model.rows)
        keys, values = self._contents(source, len(slots))
        part, other = self.model.widths["key"], self.model.widths["value"]
        if twist == 4:
            keys = (*keys, (1,) * part)
        elif twist == 5:
            values = values[1:] or ((1,) * other,) * 2
        elif twist == 6 and slots:
            keys = _resized(keys, part + 1 - 2 * (seed % 2))
        elif twist == 7 and slots:
            values = _resized(values, 1 if other > 1 and seed % 2 else 2 * other)
        elif twist == 8:
            keys, values = (*keys, (1,) * part), (*values, (1,) * other)
        self._write(layer, slots, keys, values, shape, source)

    @act(needs="can_refuse", beyond=(0, 1))
    def read_badly(self, beyond: int) -> None:
        """Read a layer that does not exist."""
        self.do(ops.ReadKV(self.model.layers if beyond else -1))

    def _write(
        self, layer: int, slots: list[int], keys: Rows, values: Rows, shape: int, source: random.Random
    ) -> None:
        form = index_form(source, slots)
        self.ask(ops.WriteKV(layer, tuple(slots), keys, values, SHAPES[shape], form))

    def _slots(self, source: random.Random, tokens: int, padding: int) -> list[int]:
        """Return random slots, often including the last one."""
        usable = range(1, self.model.rows)
        slots = source.sample(usable, min(tokens, len(usable)))
        if slots and source.random() < 0.2 and usable[-1] not in slots:
            slots[0] = usable[-1]
        slots += [0] * padding
        source.shuffle(slots)
        return slots

    def _contents(self, source: random.Random, count: int) -> tuple[Rows, Rows]:
        widths = self.model.widths
        return _rows(source, count, widths["key"]), _rows(source, count, widths["value"])


def _rows(source: random.Random, count: int, width: int) -> Rows:
    return tuple(tuple(source.randrange(-128, 128) for _ in range(width)) for _ in range(count))


def _resized(rows: Rows, width: int) -> Rows:
    return tuple((row * 2)[:width] for row in rows)


_NAMESPACES = (None, "lora", "", 7, 0, -1)
_LARGE_FORMS = ("list", "tuple", "int64", "tensor64")
_FORMS = (*_LARGE_FORMS, "array", "int32", "tensor32", "list 2", "tuple 2", "list 3")
"""Containers of keys, each with the token widths that it can hold."""
_EDGES = (0, 1, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1)


class HashMachine(PoolMachine):
    """The machine that drives `RadixKey` and the hash functions (K1, H1, X1)."""

    MALFORMED = malformed_calls(
        slice_key=("a float start", "a float namespace", "a bool namespace", "a float in a namespace"),
        pick_token=("a float index", "no index"),
        hash_page=(
            *("float tokens", "a float array", "a bool array", "a string of tokens", "a number of tokens"),
            *("three dimensions", "empty tuples", "a number as prior"),
            *("two dimensions", "a list of lists", "tuples of one number"),
        ),
        hash_int64=("a number", "bytes"),
        hash_bytes=("a string", "a number"),
    )

    def begin(self) -> None:
        """Start without a hashed page."""
        self.last_digest: str | None = None
        self._has_bigrams = "bigrams" in self.capabilities
        self._further = self.capabilities.intersection(DIMENSIONS[1:])
        self.can_mix_widths = self.can_refuse and self._has_bigrams  # a page of several widths is refused

    # -- keys ----------------------------------------------------------------------------------------------
    @act(weight=2, count=(0, 5), form=(0, 9), start=(-7, 7), stop=(-7, 7), seed=SEED)
    def slice_key(self, count: int, form: int, start: int, stop: int, seed: int) -> None:
        """Slice a key, where -7 stands for a missing bound."""
        key = self._key(count, form, seed)
        self.do(ops.SliceKey(key, None if start == -7 else start, None if stop == -7 else stop))

    @act(weight=2, count=(1, 5), form=(0, 9), at=(-6, 6), seed=SEED)
    def pick_token(self, count: int, form: int, at: int, seed: int) -> None:
        """Pick one token of a key, perhaps beyond its end."""
        if self.can_refuse or -count <= at < count:
            self.do(ops.PickToken(self._key(count, form, seed), at))

    # -- hashes --------------------------------------------------------------------------------------------
    @act(weight=3, count=(0, 5), form=(0, 9), is_chained=(0, 1), seed=SEED)
    def hash_page(self, count: int, form: int, is_chained: int, seed: int) -> None:
        """Hash a page, alone or chained to the last page."""
        prior = self.last_digest if is_chained else None
        result = self.do(ops.HashPage(self._key(count, form, seed), prior)).result
        if isinstance(result, Hashes):
            self.last_digest = result.digests[0]

    @act(needs="can_refuse", count=(0, 3), form=(0, 3), wrong=(0, 4), seed=SEED)
    def hash_page_badly(self, count: int, form: int, wrong: int, seed: int) -> None:
        """Hash a page with a token outside 32 bits, or after an invalid digest."""
        source = random.Random(seed)
        tokens: tuple[Token, ...] = tuple(source.randrange(9) for _ in range(count))
        prior = {0: "no digest", 1: "abc"}.get(wrong)
        if wrong > 1:
            tokens = (*tokens, {2: -1, 3: 2**32, 4: 2**40}[wrong])
        self.do(ops.HashPage(Key(tokens, None, _LARGE_FORMS[form]), prior))

    @act(needs="can_mix_widths", first=(0, 3), second=(0, 3))
    def hash_a_mixed_page(self, first: int, second: int) -> None:
        """Hash a page with tokens of different widths, or with tuples of one number."""
        if first != second or first == 3:
            token: tuple[Token, ...] = (5, (5, 6), (5, 6, 7), (5,))
            self.do(ops.HashPage(Key((token[first], token[second]))))

    @act(digits=(16, 64), seed=SEED)
    def hash_int64(self, digits: int, seed: int) -> None:
        """Convert a digest, or only its beginning, to a number."""
        digest = f"{random.Random(seed).getrandbits(256):064x}"
        self.do(ops.HashInt64((digest.upper() if seed % 3 == 0 else digest)[:digits]))

    @act(needs="can_refuse", digits=(0, 15), is_hex=(0, 1))
    def hash_int64_badly(self, digits: int, is_hex: int) -> None:
        """Convert a text that is too short or not hexadecimal to a number."""
        self.do(ops.HashInt64("7" * digits if is_hex else "7" * digits + "-" * 8 + "7" * 8))

    @act(count=(0, 8), seed=SEED)
    def hash_bytes(self, count: int, seed: int) -> None:
        """Hash some bytes."""
        self.do(ops.HashBytes(random.Random(seed).randbytes(count).hex()))

    def _key(self, count: int, form: int, seed: int) -> Key:
        """Return a key in a container that can hold its tokens."""
        source = random.Random(seed)
        chosen, _, width = _FORMS[form].partition(" ")
        edges = _EDGES[:7] if chosen in ("int32", "tensor32") else _EDGES
        tokens: tuple[Token, ...] = tuple(source.choices(edges, k=count))
        if width and self._has_bigrams:
            tokens = tuple(tuple(source.choices(edges, k=int(width))) for _ in range(count))
        namespace: Namespace = source.choice(_NAMESPACES)
        if self._further and source.random() < 0.3:
            values = [
                source.choice(_NAMESPACES) if name in self.capabilities else None for name in DIMENSIONS
            ]
            namespace = namespace_of(values)
        return Key(tokens, namespace, chosen)
