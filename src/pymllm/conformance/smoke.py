"""Is the adapter sane? Asked before anything is judged, so that its faults are not booked as a cache's.

Nothing here knows a law. What is asked of an adapter: it can be built from each of its configurations,
twice alike; it claims what exists; it understands every operation of its kind, except where a
capability is not claimed; it answers with the right kind of result, with integers for sizes, in a form that
JSON keeps; and the simplest legal calls on something new do not fail.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pymllm.adapters.base import CAPABILITIES, Adapter, header_of
from pymllm.adapters.registry import AdapterEntry
from pymllm.conformance.adapter_calls import apply_step, build_adapter, closing, load_class
from pymllm.conformance.ended_conversation import EndedConversation, ended_conversation
from pymllm.conformance.smoke_program import LEGAL_RESULTS, SampleStep, make_sample
from pymllm.conformance.time_limit import HungError
from pymllm.errors import AdapterError, ConversationError, InvariantViolation, ProgramError, PymllmError
from pymllm.history.codec import decode, encode
from pymllm.history.files import Config
from pymllm.history.outcomes import (
    Effect,
    Failed,
    Outcome,
    Result,
    Unsupported,
)
from pymllm.oracle.judge import make_judge

__all__ = ["SmokeFailure", "SmokeReport", "find_fault", "smoke_test", "try_adapter"]


@dataclass(frozen=True, slots=True)
class SmokeReport:
    """What an adapter is, once it has shown that it works.

    Parameters
    ----------
    name : str
        As it was asked for.
    kind : str
        One of `pymllm.history.operations.KINDS`.
    configurations : tuple of (dict, frozenset of str)
        Each of the class's configurations with what it claims.
    """

    name: str
    kind: str
    configurations: tuple[tuple[Config, frozenset[str]], ...]


@dataclass(frozen=True, slots=True)
class SmokeFailure:
    """Why an adapter cannot examine anything.

    Parameters
    ----------
    name, kind
        As of `SmokeReport`; ``None`` where not even the kind is known.
    message : str
        Why.
    is_missing : bool
        Whether there is no such adapter to load.
    conversation : EndedConversation or None
        The one that came to an end by it.
    """

    name: str
    kind: str | None
    message: str
    is_missing: bool = False
    conversation: EndedConversation | None = None


def try_adapter(entry: AdapterEntry) -> SmokeReport | SmokeFailure:
    """Make a smoke test, and say what came of it instead of raising."""
    try:
        kind = load_class(entry).KIND
    except AdapterError as error:
        is_missing = not isinstance(error, HungError | ConversationError)
        return SmokeFailure(entry.name, None, error.message, is_missing, ended_conversation(error))
    try:
        return smoke_test(entry)
    except AdapterError as error:
        return SmokeFailure(entry.name, kind, error.message, conversation=ended_conversation(error))


def smoke_test(entry: AdapterEntry) -> SmokeReport:
    """Try an adapter in each of its configurations.

    Raises
    ------
    AdapterError
        It cannot be loaded, or is not fit to examine anything: says what was asked and what came back.
    """
    adapter_class = load_class(entry)
    configurations = getattr(adapter_class, "CONFIGURATIONS", None)
    if not isinstance(configurations, Sequence) or not configurations:
        raise AdapterError(entry.name, "CONFIGURATIONS must be a sequence with one dict at least")
    for config in configurations:
        _check_config(entry.name, config)
    claims = tuple((dict(config), _try_configuration(entry, dict(config))) for config in configurations)
    return SmokeReport(entry.name, adapter_class.KIND, claims)


def _check_config(name: str, config: object) -> None:
    if not isinstance(config, dict) or not all(
        isinstance(key, str) and type(value) in (int, str, bool, type(None)) for key, value in config.items()
    ):
        raise AdapterError(
            name, f"a configuration holds names with an int, str, bool or None each, not {config!r}"
        )


def _try_configuration(entry: AdapterEntry, config: Config) -> frozenset[str]:
    adapter = build_adapter(entry.place, config)
    with closing(adapter):
        _check_claims(entry, config, adapter)
        _check_header(entry.name, adapter)
        for number, step in make_sample(adapter.kind, config, adapter.capabilities).items():
            _check_step(entry.name, adapter, number, step)
    return adapter.capabilities


def _check_claims(entry: AdapterEntry, config: Config, adapter: Adapter) -> None:
    if not isinstance(adapter.capabilities, frozenset):
        raise AdapterError(entry.name, f"capabilities must be a frozenset, not {adapter.capabilities!r}")
    unknown = sorted(adapter.capabilities - set(CAPABILITIES))
    if unknown:
        raise AdapterError(
            entry.name, f"claims {unknown[0]!r}, which is no capability; there are {', '.join(CAPABILITIES)}"
        )
    twin = build_adapter(entry.place, config)
    with closing(twin):
        if (twin.kind, twin.config, twin.capabilities) != (
            adapter.kind,
            adapter.config,
            adapter.capabilities,
        ):
            raise AdapterError(entry.name, f"two of {config} differ in kind, configuration or claims")


def _check_header(name: str, adapter: Adapter) -> None:
    """Whether a judge knows what to judge."""
    try:
        make_judge(header_of(adapter))
    except (PymllmError, KeyError, TypeError, ValueError) as error:
        raise AdapterError(
            name, f"a judge cannot be made for {adapter.config}: {type(error).__name__}: {error}"
        ) from error


def _check_step(name: str, adapter: Adapter, number: int, step: SampleStep) -> None:
    def fail(what: str) -> AdapterError:
        return AdapterError(name, f"{adapter.config}: step {number}, {step.operation}: {what}")

    try:
        outcome = apply_step(adapter, number, step.operation)
    except (InvariantViolation, ProgramError) as error:
        raise fail(str(error)) from error
    problem = find_fault(outcome, step)
    if problem is not None:
        raise fail(problem)


def find_fault(outcome: Outcome, step: SampleStep) -> str | None:
    """Say what is wrong with the outcome of a step of the sample; ``None`` where nothing is."""
    if not isinstance(outcome, Outcome):
        return f"answered {outcome!r}, which is no Outcome"
    return (
        _find_wrong_result(outcome.result, step) or _find_wrong_sizes(outcome) or _find_lost_in_json(outcome)
    )


def _find_wrong_result(result: Result, step: SampleStep) -> str | None:
    if not step.is_claimed:
        if isinstance(result, Unsupported):
            return None
        return f"answered {result}, although it claims no {step.needs!r}; it must be Unsupported"
    if isinstance(result, Unsupported):
        return f"is unsupported ({result.what}), although everything that it needs is claimed"
    if isinstance(result, Failed):
        return f"the simplest legal call failed with {result.error}: {result.message}"
    legal = LEGAL_RESULTS[type(step.operation)]
    if not isinstance(result, legal):
        return f"answered {result}; it must be {' or '.join(kind.__name__ for kind in legal)}"
    return None


def _find_wrong_sizes(outcome: Outcome) -> str | None:
    for sizes in (outcome.sizes, *(getattr(effect, "sizes", {}) for effect in outcome.effects)):
        for key, value in sizes.items():
            if not isinstance(key, str) or type(value) is not int:
                return f"the size {key!r} is {value!r}; sizes are integers by name"
    if not isinstance(outcome.effects, tuple) or not all(isinstance(it, Effect) for it in outcome.effects):
        return f"effects are {outcome.effects!r}; they must be a tuple of Effect"
    return None


def _find_lost_in_json(outcome: Outcome) -> str | None:
    try:
        again = decode(Outcome, json.loads(json.dumps(encode(outcome))))
    except (TypeError, ValueError) as error:
        return f"JSON does not keep {outcome}: {error}"
    return None if again == outcome else f"JSON turns {outcome} into {again}"
