"""The tree of errors: what a caller may catch, and what the messages say."""

from __future__ import annotations

import importlib
import pickle

import pytest

from pymllm import errors

BUILT_IN = {
    errors.UsageError: ValueError,
    errors.CapacityError: RuntimeError,
    errors.MambaSlotCapacityError: RuntimeError,
    errors.TraceError: ValueError,
}


def test_every_public_error_is_a_pymllm_error() -> None:
    """X1: one except clause catches whatever the package raises by its own name."""
    classes = [getattr(errors, name) for name in errors.__all__]
    assert len(classes) == 12
    assert all(issubclass(cls, errors.PymllmError) for cls in classes)


@pytest.mark.parametrize(("error", "built_in"), BUILT_IN.items())
def test_errors_are_also_the_built_in_kind(error: type[Exception], built_in: type[Exception]) -> None:
    """X1: a caller that knows only Python's own errors catches them too."""
    assert issubclass(error, built_in)


@pytest.mark.parametrize("error", [errors.OwnershipError, errors.LockError, errors.StaleNodeError])
def test_each_kind_of_misuse_is_a_usage_error(error: type[Exception]) -> None:
    """X1: misuse can be caught as a whole."""
    assert issubclass(error, errors.UsageError)


def test_too_few_slots_for_states_is_one_error_by_each_of_its_names() -> None:
    """C5: who catches what `pymllm.errors` has catches what the allocator raises, in another process, too."""
    by_module = importlib.import_module("pymllm.core.inference.contexts.mamba_slot_allocator")
    by_room = importlib.import_module("pymllm.core.inference.contexts")
    error = errors.MambaSlotCapacityError
    assert by_module.MambaSlotCapacityError is by_room.MambaSlotCapacityError is error
    assert issubclass(error, errors.CapacityError)
    copy = pickle.loads(pickle.dumps(error("2 more slots are needed")))
    assert (type(copy), copy.args) == (error, ("2 more slots are needed",))


def test_only_an_invariant_violation_says_that_an_implementation_is_wrong() -> None:
    """A broken law is neither misuse nor load, and nobody catches it by accident."""
    assert not issubclass(errors.InvariantViolation, (ValueError, RuntimeError))


def test_an_invariant_violation_names_its_law_first() -> None:
    """The law's id leads the text and is a field."""
    violation = errors.InvariantViolation("R7", "lock_ref is 2, recounted 1")
    assert (violation.law, violation.message) == ("R7", "lock_ref is 2, recounted 1")
    assert str(violation) == "R7: lock_ref is 2, recounted 1"


def test_an_invariant_violation_sets_both_sides_beside_each_other() -> None:
    """An invariant violation holds the expected and the observed value as fields and in its text."""
    violation = errors.InvariantViolation("R2", "length of a match", expected="4", observed="8")
    assert str(violation) == "R2: length of a match: expected 4, observed 8"


def test_an_adapter_error_names_the_adapter() -> None:
    """An adapter error names the adapter, and so does not look like a fault of the cache."""
    assert str(errors.AdapterError("mine", "no module m")) == "adapter mine: no module m"


@pytest.mark.parametrize(
    ("line", "text"), [(3, "trace.jsonl:3: no timestamp"), (None, "trace.jsonl: no timestamp")]
)
def test_a_trace_error_says_where(line: int | None, text: str) -> None:
    """File and line are in the text, and the line is left out where the whole file is meant."""
    error = errors.TraceError("trace.jsonl", line, "no timestamp")
    assert str(error) == text
    assert (error.source, error.line, error.message) == ("trace.jsonl", line, "no timestamp")


@pytest.mark.parametrize(
    "error",
    [
        errors.InvariantViolation("A2", "lost a page"),
        errors.InvariantViolation("A2", "free pages", expected="8", observed="7"),
        errors.TraceError("x", 1, "empty"),
        errors.AdapterError("mine", "no module"),
        errors.ConversationError("mine", "hung", "hung", "> hello"),
    ],
)
def test_errors_with_fields_survive_a_process_boundary(error: Exception) -> None:
    """A worker process can hand its error to the one that waits for it."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert vars(again) == vars(error)
