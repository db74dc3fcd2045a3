"""The calls of machines and searches to adapters, with a time limit and with errors that name the adapter.

An adapter is a stranger's code and may do anything. What it raises, and that it hangs or tries to end the
process, becomes an `AdapterError` which says in which call; only a violation that an adapter finds itself and
a program without sense pass as they are. In a worker that goes for every exception there is. Elsewhere, as in
somebody's own tests, an interrupt is the user's, and what a test framework raises is its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TypeVar

from pymllm.adapters.base import Adapter, AdapterClass, place_of
from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.error_lines import line_of
from pymllm.adapters.registry import find_adapter, load_adapter, make_adapter
from pymllm.errors import AdapterError, ConversationError, InvariantViolation, ProgramError
from pymllm.history.config_limits import check_config
from pymllm.history.files import Config, Header, History, Step
from pymllm.history.operations import KINDS, Operation
from pymllm.history.outcomes import Outcome
from pymllm.text_file import shown
from pymllm.torch_extra import collector_aside
from pymllm.work.time_limit import AdapterCall, HungError, TookTooLong
from pymllm.work.workers import is_worker

_LOADING = 60.0  # Seconds to import an adapter, at least.

Answer = TypeVar("Answer")


def build_adapter(name: str, config: Config | None = None) -> Adapter:
    """Build an adapter as `make_adapter` does; raise `AdapterError` if it cannot be loaded or built.

    `ProgramError` says that the configuration describes something too large.
    """
    made = load_class(find_adapter(name))  # apart: it may take longer than anything after it
    if config is not None:
        check_config(config, made.KIND)
    call = AdapterCall(
        name, lambda: _as_built(name, make_adapter(name, config)), lambda: f"building it with {config}"
    )
    return answer_of(call)


def find_changed(header: Header, adapter: Adapter) -> str | None:
    """Return the name of an adapter's attribute that differs from a header; ``None`` if none does."""
    if adapter.kind != header.kind:
        return "kind"
    if adapter.config != header.config:
        return "configuration"
    if tuple(sorted(adapter.capabilities)) != header.capabilities:
        return "claims"
    return "limits" if getattr(adapter, "limits", {}) != header.limits else None


def _as_built(name: str, adapter: Adapter) -> Adapter:
    """Return a new adapter; raise `AdapterError` if its name, kind, config or capabilities are invalid."""
    if type(adapter.name) is not str:
        raise AdapterError(name, f"its name is {shown(adapter.name)}; keep the name given to __init__")
    if type(adapter.kind) is not str or adapter.kind not in KINDS:
        raise AdapterError(name, f"its kind is {shown(adapter.kind)}; it must stay that of its class, KIND")
    if not isinstance(adapter.config, dict):
        raise AdapterError(name, f"its config is {shown(adapter.config)}; it must stay the configuration")
    if not isinstance(adapter.capabilities, frozenset):
        raise AdapterError(name, f"capabilities must be a frozenset, not {shown(adapter.capabilities)}")
    return adapter


class _Step(AdapterCall[Outcome]):
    """A call that carries out one operation; a class, since four closures per call took twice as long."""

    __slots__ = ("_asked", "_history")

    def __init__(self, adapter: Adapter, number: int, operation: Operation, history: History | None) -> None:
        self.adapter, self.seconds_least = adapter.name, 0.0
        self._asked = adapter, number, operation
        self._history = history

    def make(self) -> Outcome:
        adapter, number, operation = self._asked
        return adapter.apply(number, operation)

    def what(self) -> str:
        _, number, operation = self._asked
        return f"step {number}, {operation}"

    def program(self) -> History | None:
        history = self._history
        return None if history is None else History(history.header, [*history.steps, Step(*self._asked[1:])])


def apply_step(
    adapter: Adapter, number: int, operation: Operation, history: History | None = None
) -> Outcome:
    """Have an adapter carry out an operation; ``history`` is reported if the adapter hangs.

    `ProgramError`: it names a step that gave nothing. `InvariantViolation`: the adapter looked inside and
    found it. `AdapterError`: the adapter raised something else, which is no outcome.
    """
    return answer_of(_Step(adapter, number, operation, history))


def audit_adapter(adapter: Adapter, history: History) -> tuple[str, ...]:
    """Have an adapter audit its implementation after the last step; raise errors as `apply_step` does."""
    return answer_of(
        AdapterCall(
            adapter.name,
            lambda: _audited(adapter),
            lambda: f"its audit after step {history.steps[-1].number if history.steps else 0}",
            lambda: history,
        )
    )


def _audited(adapter: Adapter) -> tuple[str, ...]:
    named = adapter.audit()
    if isinstance(named, str) or not isinstance(named, Iterable):
        raise AdapterError(
            adapter.name,
            f"audit() returned {shown(named)}; it must return ids of the laws that it checked, () for none"
            f"{place_of(adapter, 'audit')}",
        )
    return tuple(named)


def close_adapter(adapter: Adapter, history: History | None = None) -> None:
    """Close an adapter after the steps of a history; raise `AdapterError` for any error.

    One that has just hung is left alone.
    """
    if not isinstance(sys.exc_info()[1], HungError):
        answer_of(AdapterCall(adapter.name, adapter.close, lambda: "close", lambda: history))


@contextmanager
def closing(adapter: Adapter, history: History | None = None) -> Iterator[None]:
    """Close an adapter at the end of a ``with`` block; an error in the block outweighs one in closing."""
    try:
        yield
    except BaseException:
        with suppress(AdapterError):
            close_adapter(adapter, history)
        raise
    close_adapter(adapter, history)


def load_class(entry: AdapterEntry) -> AdapterClass:
    """Import an adapter's class, with time for heavy packages; raise `AdapterError` if that fails."""
    call = AdapterCall(
        entry.name, lambda: _load(entry), lambda: f"importing {entry.place}", seconds_least=_LOADING
    )
    return answer_of(call)


def _load(entry: AdapterEntry) -> AdapterClass:
    """Import a class; in a worker process, also exclude torch's objects from garbage collection."""
    with collector_aside() if entry.needs_torch and is_worker() else nullcontext():
        return load_adapter(entry)


def answer_of(call: AdapterCall[Answer]) -> Answer:
    """Return the result of a call to an adapter, or raise the errors that this module's docstring lists."""
    try:
        return call.within_limit()
    except (AdapterError, InvariantViolation, ProgramError, TookTooLong):
        raise
    except SystemExit as error:
        raise AdapterError(call.adapter, f"{call.what()} tried to end the process, {error!r}") from error
    except BaseException as error:
        if not isinstance(error, Exception | GeneratorExit) and not is_worker():
            raise
        raise AdapterError(call.adapter, f"{call.what()} raised {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """Return the name of an error and the line of code that raised it."""
    try:
        words = f": {error}" if str(error) else ""
    except Exception:  # a stranger's class may say so in code that fails, too
        words = ", which cannot be put into words"
    return f"{type(error).__name__}{words} ({line_of(error)})"


@dataclass(frozen=True, slots=True)
class EndedConversation:
    """The end of a conversation with an adapter program: the verdict on it and its last lines."""

    verdict: str  # of `pymllm.adapters.process.VERDICTS`
    text: str  # the last lines, for a file


def ended_conversation(error: BaseException) -> EndedConversation | None:
    """Return the end of a conversation from the error that ended it; ``None`` for any other error."""
    if not isinstance(error, ConversationError):
        return None
    return EndedConversation(error.verdict, error.conversation)
