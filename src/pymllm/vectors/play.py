"""A vector played on an adapter: passed, failed, other way, or skipped with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from pymllm.adapters.base import AdapterClass
from pymllm.errors import AdapterError, InvariantViolation, ProgramError, PymllmError
from pymllm.history.claims import all_claims
from pymllm.history.files import Config
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Outcome, Unsupported
from pymllm.machines.adapter_calls import apply_step, build_adapter, closing
from pymllm.vectors.expectations import Given, Mismatch, OtherWay, match
from pymllm.vectors.format import TWICE, Vector

Verdict = Literal["passed", "failed", "other way", "skipped"]
PASSED: Final = "passed"
FAILED: Final = "failed"
OTHER: Final = "other way"
SKIPPED: Final = "skipped"


@dataclass(frozen=True, slots=True)
class Played:
    """The verdict on a vector with its step and reason; ``where`` names the differing part."""

    verdict: Verdict
    step: int = 0
    why: str = ""
    where: str = ""


def plain_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as plain data with every field that the adapter can report."""
    plain: dict[str, Any] = _plain(outcome)
    result = plain["result"]
    for name in ("node_len", "dtype", "recurrent_dtype", "conv_dtype"):
        if result.get(name, "") in (None, ""):
            result.pop(name, None)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag = {} if config.tag is None else {str(config.tag_field): config.tag}
        return {**tag, **{name: _plain(getattr(value, name)) for name in value.__struct_fields__}}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value


def play(vector: Vector, apply: Callable[[int, Operation], Outcome]) -> Played:
    """Play a vector, given a function that carries out operations."""
    given = Given()
    for number, step in enumerate(vector.steps, 1):
        outcome = apply(number, step.operation)
        if isinstance(outcome.result, Unsupported):
            return Played(SKIPPED, number, f"{outcome.result.what} is unsupported")
        seen = plain_outcome(outcome)
        try:
            match(step.expect, seen, given)
        except OtherWay:
            return Played(OTHER, number)
        except Mismatch as error:
            return Played(FAILED, number, str(error), error.where)
        given.record(number, seen["result"])
    return Played(PASSED)


def play_on(vector: Vector, name: str, made: AdapterClass) -> Played:
    """Play a vector on a new adapter, or skip it if the adapter lacks its configuration or claims."""
    config = find_config(vector.config, made.CONFIGURATIONS)
    if config is None:
        return Played(SKIPPED, 0, "no configuration is like that of the vector")
    try:
        adapter = build_adapter(name, config)
    except PymllmError as error:
        return Played(SKIPPED, 0, f"cannot be built so: {error}")
    missing = sorted(set(vector.needs) - all_claims(adapter.capabilities) - {TWICE})
    limits = sorted(adapter.capabilities & _LIMITS - set(vector.needs))
    with closing(adapter):
        if limits:
            return Played(SKIPPED, 0, f"claims {', '.join(limits)}, which the vector does not know")
        if missing:
            return Played(SKIPPED, 0, f"does not claim {', '.join(missing)}")
        step = 0
        answers: list[dict[str, Any]] = []

        def apply(number: int, operation: Operation) -> Outcome:
            nonlocal step
            step = number
            outcome = apply_step(adapter, number, operation)
            answers.append(plain_outcome(outcome))
            return outcome

        try:
            played = play(vector, apply)
            if TWICE in vector.needs and played.verdict == PASSED:
                return _play_again(vector, name, config, answers)
            return played
        except InvariantViolation as error:
            return Played(FAILED, step, str(error), "inside")
        except ProgramError as error:
            return Played(FAILED, step, f"it makes no sense any more: {error}", "program")
        except AdapterError as error:
            return Played(FAILED, step, f"no answer: {error}", "adapter")


def _play_again(vector: Vector, name: str, config: Config, answers: Sequence[dict[str, Any]]) -> Played:
    """Play a vector on a second adapter, and compare every result exactly."""
    adapter = build_adapter(name, config)
    with closing(adapter):
        for number, (step, first) in enumerate(zip(vector.steps, answers, strict=True), 1):
            again = plain_outcome(apply_step(adapter, number, step.operation))
            if again != first:
                where = next(part for part in again if again[part] != first.get(part))
                why = f"the second time: expected {first[where]!r}, seen {again[where]!r}"
                return Played(FAILED, number, why, where)
    return Played(PASSED)


_LIMITS = {"careful_callers", "counts_copies", "trusted_hashes", "lone_states"}
"""Claims that change, rather than extend, the right results."""

_OF_CLAIMS = ("check_ownership", "need_sort", "store", "policy")
"""Settings that an adapter's claims determine as far as laws go."""
_OF_POOLS = ("slots", "swa_slots", "sliding_window")
"""Settings of pools that a vector does not use, and of windows that an adapter does not claim."""


def find_config(config: Config, configurations: Sequence[Mapping[str, Any]]) -> Config | None:
    """Return a vector's configuration in an adapter's form; ``None`` if no configuration fits.

    Numbers are the vector's; but who has only pages of one token, or none of them, gets no other. Whatever is
    no number is a decision: of a window, of a kind of pool, of what is kept. There the two must be alike, and
    the adapter must not have made one that the vector does not know.
    """
    if (config.get("page_size") == 1) not in {own.get("page_size") == 1 for own in configurations}:
        return None
    for own in configurations:
        if all(_is_like(config[name], own.get(name)) for name in config if name not in _OF_CLAIMS):
            extra = {name: value for name, value in own.items() if name not in config}
            if all(name in _OF_POOLS or name in _OF_CLAIMS for name in extra):
                return {**extra, **config}
    return None


def _is_like(one: object, other: object) -> bool:
    is_number = type(one) is int and type(other) is int
    return is_number or one == other
