"""The judge of keys and hashes: slices as Python makes them, digests as hashlib makes them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from pymllm.errors import ProgramError
from pymllm.history.operations import KEY_FORMS, HashBytes, HashInt64, HashPage, Key, PickToken, SliceKey
from pymllm.history.outcomes import Hashes, Number, Outcome, Tokens
from pymllm.oracle.models.cold_runs import hash_page, numbers_of
from pymllm.oracle.models.prefix_model import demand_namespace
from pymllm.oracle.pool_judge import MALFORMED_ERRORS, PoolJudge

_TOKENS = range(2**32)
_DIGEST_DIGITS = 64


class HashJudge(PoolJudge):
    """Judges keys and the documented hash functions (K1, H1, X1). Nothing is remembered from step to step."""

    KIND = "hashes"

    # -- keys ----------------------------------------------------------------------------------------------

    def _judge_slice_key(self, step: int, operation: SliceKey, outcome: Outcome) -> str:
        key, start, stop = operation.key, operation.start, operation.stop
        _demand_width(key)
        expected = key.tokens[start:stop]
        self._judge_part(key, expected, f"slice {start}:{stop}", outcome)
        self.evidence.meet("a slice is empty", key.tokens and not expected)
        self.evidence.meet("a slice reaches beyond the end", (stop or 0) > len(key.tokens))
        self.evidence.meet("a slice counts from the end", expected and min(start or 0, stop or 0) < 0)
        return "K1"

    def _judge_pick_token(self, step: int, operation: PickToken, outcome: Outcome) -> str:
        key, at = operation.key, operation.at
        _demand_width(key)
        what = f"token {at} of {len(key.tokens)}"
        if not -len(key.tokens) <= at < len(key.tokens):
            self.evidence.meet("a token outside the key is asked for")
            return self.expect_refusal("X1", what, outcome, "IndexError")
        self._judge_part(key, (key.tokens[at],), what, outcome)
        self.evidence.meet("a token is counted from the end", at < 0)
        return "K1"

    def _judge_part(self, key: Key, tokens: Sequence[object], what: str, outcome: Outcome) -> None:
        part = self.answer(Tokens, "K1", what, outcome)
        self.evidence.expect("K1", f"{what}: tokens", tokens, part.tokens)
        self.evidence.expect("K1", f"{what}: namespace", key.extra_key, part.extra_key)
        self.evidence.meet(f"a key in form {key.form} is read", tokens)
        self.evidence.meet("a key of tuples is read", any(isinstance(token, tuple) for token in tokens))
        self.evidence.meet("a part keeps its namespace", key.extra_key is not None)

    # -- hashes --------------------------------------------------------------------------------------------

    def _judge_hash_page(self, step: int, operation: HashPage, outcome: Outcome) -> str:
        key, prior = operation.key, operation.prior
        _demand_form(key)
        if len(_widths(key)) > 1:
            self.evidence.meet("a page of several widths is refused")
            return self.expect_refusal("X1", "a page of several widths", outcome, *MALFORMED_ERRORS)
        if 1 in _widths(key):
            self.evidence.meet("a page of tuples of one number is refused")
            return self.expect_refusal("K1", "tuples of one number", outcome, *MALFORMED_ERRORS)
        if prior is not None and not _is_digest(prior):
            self.evidence.meet("a prior that is no digest is refused")
            return self.expect_refusal("X1", f"prior {prior!r}", outcome, *MALFORMED_ERRORS)
        numbers = [number for token in key.tokens for number in numbers_of(token)]
        outside = [number for number in numbers if number not in _TOKENS]
        if outside:
            self.evidence.meet(f"a token {'below 0' if outside[0] < 0 else 'above 32 bits'} is refused")
            return self.expect_refusal("H1", f"token {outside[0]}", outcome, "ValueError")
        digests = self.answer(Hashes, "H1", "hash of a page", outcome).digests
        self.evidence.expect(
            "H1", f"hash of {key.tokens} after {prior}", (hash_page(numbers, prior or ""),), digests
        )
        self.evidence.meet(f"a page in form {key.form} is hashed", numbers)
        self.evidence.meet("a page of tuples is hashed", len(numbers) > len(key.tokens))
        self.evidence.meet("a page is chained to another", prior)
        self.evidence.meet("the largest token is hashed", _TOKENS[-1] in numbers)
        return "H1"

    def _judge_hash_int64(self, step: int, operation: HashInt64, outcome: Outcome) -> str:
        digest = operation.digest
        what = f"the first 16 digits of {digest!r}"
        if not re.fullmatch("[0-9a-fA-F]{16}", digest[:16]):
            self.evidence.meet("what is no digest is not turned into a number")
            return self.expect_refusal("X1", what, outcome, *MALFORMED_ERRORS)
        unsigned = int(digest[:16], 16)
        expected = unsigned - 2**64 if unsigned >= 2**63 else unsigned
        self.evidence.expect("H1", what, expected, self.answer(Number, "H1", what, outcome).value)
        self.evidence.meet("a digest is a negative number", expected < 0)
        self.evidence.meet("a digest is a positive number", expected > 0)
        return "H1"

    def _judge_hash_bytes(self, step: int, operation: HashBytes, outcome: Outcome) -> str:
        try:
            data = bytes.fromhex(operation.data)
        except ValueError:
            raise ProgramError(f"data is {operation.data!r}; it must be bytes in hex") from None
        what = f"hash of {len(data)} bytes"
        expected = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
        self.evidence.expect("H1", what, expected, self.answer(Number, "H1", what, outcome).value)
        self.evidence.meet("a hash of bytes exceeds what is signed", expected >= 2**63)
        return "H1"


def _widths(key: Key) -> set[int]:
    """Return how many numbers the tokens have; 0 stands for one that is a number itself."""
    return {len(token) if isinstance(token, tuple) else 0 for token in key.tokens}


def _demand_form(key: Key) -> None:
    if key.form not in KEY_FORMS:
        raise ProgramError(f"the key is in form {key.form!r}; it must be one of {', '.join(KEY_FORMS)}")
    demand_namespace(key)


def _demand_width(key: Key) -> None:
    _demand_form(key)
    if len(_widths(key)) > 1:
        raise ProgramError(f"the tokens of {key} have several widths; one key has one")
    if 1 in _widths(key):
        raise ProgramError(f"the tokens of {key} are tuples of one number; they must be the numbers")


def _is_digest(prior: str) -> bool:
    """Tell whether a prior is a digest, or else must be refused.

    A `ProgramError` where it is hexadecimal and of another length: what follows from it is nobody's promise.
    """
    if not re.fullmatch("(?:[0-9a-fA-F]{2})*", prior):
        return False
    if len(prior) != _DIGEST_DIGITS:
        raise ProgramError(f"prior has {len(prior)} digits; a digest has {_DIGEST_DIGITS}")
    return True
