"""The model of keys and hashes: slices by Python's rules, digests by `hashlib`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pymllm.errors import ProgramError
from pymllm.history.operations import KEY_FORMS, HashBytes, HashInt64, HashPage, Key, PickToken, SliceKey
from pymllm.history.outcomes import Hashes, Number, Outcome, Result, Tokens
from pymllm.oracle.models.cold_runs import hash_page, numbers_of
from pymllm.oracle.models.kind_model import MALFORMED_ERRORS, KindModel, Misuse, Seen
from pymllm.oracle.models.prefix_model import demand_namespace

TOKENS = range(2**32)
_DIGEST_DIGITS = 64

_OUTSIDE = Misuse("a token outside the key is asked for", "X1", ("IndexError",))
_UNEVEN = Misuse("a page of several widths is refused", "X1", MALFORMED_ERRORS)
_OF_ONE = Misuse("a page of tuples of one number is refused", "K1", MALFORMED_ERRORS)
_NO_PRIOR = Misuse("a prior that is no digest is refused", "X1", MALFORMED_ERRORS)
_NO_DIGEST = Misuse("what is no digest is not turned into a number", "X1", MALFORMED_ERRORS)
_NEGATIVE = Misuse("a token below 0 is refused", "H1", ("ValueError",))
_TOO_LARGE = Misuse("a token above 32 bits is refused", "H1", ("ValueError",))


@dataclass(slots=True, kw_only=True)
class SeenAnswer(Seen):
    """A result and the only correct result; for a page also its integers."""

    expected: Result
    numbers: Sequence[int] = ()


class HashModel(KindModel):
    """The model of the results of keys and hash functions; it has no state."""

    KIND: ClassVar[str] = "hashes"

    # -- keys ----------------------------------------------------------------------------------------------

    def read_slice_key(self, operation: SliceKey, outcome: Outcome) -> Seen:
        """Read the slice of a key."""
        key, start, stop = operation.key, operation.start, operation.stop
        _demand_width(key)
        part = Tokens(key.tokens[start:stop], key.extra_key)
        return SeenAnswer(outcome.result, expected=part)

    def read_pick_token(self, operation: PickToken, outcome: Outcome) -> Seen:
        """Read a pick of one token from a key, which must contain it."""
        key, at = operation.key, operation.at
        _demand_width(key)
        if not -len(key.tokens) <= at < len(key.tokens):
            return self.refused(outcome, _OUTSIDE)
        part = Tokens((key.tokens[at],), key.extra_key)
        return SeenAnswer(outcome.result, expected=part)

    # -- hashes --------------------------------------------------------------------------------------------

    def read_hash_page(self, operation: HashPage, outcome: Outcome) -> Seen:
        """Read the digest of a page, which must be well formed, like the prior digest."""
        key, prior = operation.key, operation.prior
        _demand_form(key)
        widths = _widths(key)
        if len(widths) > 1:
            return self.refused(outcome, _UNEVEN)
        if 1 in widths:
            return self.refused(outcome, _OF_ONE)
        if prior is not None and not _is_digest(prior):
            return self.refused(outcome, _NO_PRIOR)
        numbers = tuple([number for token in key.tokens for number in numbers_of(token)])
        outside = next((number for number in numbers if number not in TOKENS), None)
        if outside is not None:
            return self.refused(outcome, _NEGATIVE if outside < 0 else _TOO_LARGE)
        digests = Hashes((hash_page(numbers, prior or ""),))
        return SeenAnswer(outcome.result, expected=digests, numbers=numbers)

    def read_hash_int64(self, operation: HashInt64, outcome: Outcome) -> Seen:
        """Read the signed integer of a digest's first 16 hex digits, of which there must be some."""
        digits = operation.digest[:16]
        if not re.fullmatch("[0-9a-fA-F]{16}", digits):
            return self.refused(outcome, _NO_DIGEST)
        number = int.from_bytes(bytes.fromhex(digits), "big", signed=True)
        return SeenAnswer(outcome.result, expected=Number(number))

    def read_hash_bytes(self, operation: HashBytes, outcome: Outcome) -> Seen:
        """Read the unsigned number of the first 8 bytes of a hash of bytes."""
        try:
            data = bytes.fromhex(operation.data)
        except ValueError:
            raise ProgramError(f"data is {operation.data!r}; it must be bytes in hex") from None
        number = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
        return SeenAnswer(outcome.result, expected=Number(number))


def _widths(key: Key) -> set[int]:
    """Return the set of token widths; 0 stands for a token that is a number itself."""
    return {len(token) if isinstance(token, tuple) else 0 for token in key.tokens}


def _demand_form(key: Key) -> None:
    if key.form not in KEY_FORMS:
        raise ProgramError(f"the key is in form {key.form!r}; it must be one of {', '.join(KEY_FORMS)}")
    demand_namespace(key)


def _demand_width(key: Key) -> None:
    _demand_form(key)
    widths = _widths(key)
    if len(widths) > 1:
        raise ProgramError(f"the tokens of {key} have several widths; one key has one")
    if 1 in widths:
        raise ProgramError(f"the tokens of {key} are tuples of one number; they must be the numbers")


def _is_digest(prior: str) -> bool:
    """Tell whether a prior hash is a well-formed digest; any other must be refused.

    A `ProgramError` where it is hexadecimal and of another length: what follows from it is nobody's promise.
    """
    if not re.fullmatch("(?:[0-9a-fA-F]{2})*", prior):
        return False
    if len(prior) != _DIGEST_DIGITS:
        raise ProgramError(f"prior has {len(prior)} digits; a digest has {_DIGEST_DIGITS}")
    return True
