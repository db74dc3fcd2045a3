"""The records of a probe: operations on a server, their outcomes, and the file that holds both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from pymllm.errors import TraceError
from pymllm.text_file import read_lines, write_text_file

_S = TypeVar("_S", bound=msgspec.Struct)
_HEAD_MOST = 1 << 16

# -- what is asked -----------------------------------------------------------------------------------------


class Ask(msgspec.Struct, frozen=True, tag="ask", tag_field="op", omit_defaults=True):
    """One request. Its prompt is ``tokens``, behind the prompt and the answer of request ``after`` if any.

    ``id`` names the request in its program. ``salt`` is a namespace of the program, not the text that is
    sent: each play draws texts of its own.
    """

    id: int
    tokens: tuple[int, ...]
    max_tokens: int
    salt: str = ""
    after: int | None = None


class Drop(msgspec.Struct, frozen=True, tag="drop", tag_field="op"):
    """A stream that the client leaves after so many bytes; 0: before the first one."""

    ask: Ask
    bytes: int


class Burst(msgspec.Struct, frozen=True, tag="burst", tag_field="op"):
    """Several requests at once."""

    asks: tuple[Ask, ...]


class Cold(msgspec.Struct, frozen=True, tag="cold", tag_field="op"):
    """Earlier requests again, as they were sent, where no cache can serve them; several of them at once."""

    of: tuple[int, ...]


class Reset(msgspec.Struct, frozen=True, tag="reset", tag_field="op"):
    """Empty the cache."""


class Look(msgspec.Struct, frozen=True, tag="look", tag_field="op"):
    """Read the server's metrics once it rests, or after some seconds in which it does not."""


Operation: TypeAlias = Ask | Drop | Burst | Cold | Reset | Look


def asks_of(operation: Operation) -> tuple[Ask, ...]:
    """Return the requests that an operation makes; none for a dropped stream."""
    if isinstance(operation, Ask):
        return (operation,)
    return operation.asks if isinstance(operation, Burst) else ()


# -- what came of it ---------------------------------------------------------------------------------------

Token: TypeAlias = int | str
"""The id of a token, or its text if the server reports no ids."""


class Place(msgspec.Struct, frozen=True):
    """One token of an answer, and the best tokens at its place with their log-probabilities, best first."""

    token: Token
    top: tuple[tuple[Token, float], ...] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one request; what the server does not tell is null.

    ``prompt`` is what was sent. ``is_stopped``: the model ended the answer, before ``max_tokens``.
    """

    prompt: tuple[int, ...]
    places: tuple[Place, ...]
    cached: int | None = None
    prompt_tokens: int | None = None
    generated: int | None = None
    is_stopped: bool = False

    @property
    def tokens(self) -> tuple[int, ...] | None:
        """The ids of the answer's tokens; ``None`` if the server does not report them."""
        ids = tuple(place.token for place in self.places if isinstance(place.token, int))
        return ids if len(ids) == len(self.places) else None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures from a server's metrics, ``None`` for missing ones.

    ``memory`` is the share that requests hold, 0 to 1; the sums count since the server's start.
    """

    running: float | None = None
    waiting: float | None = None
    memory: float | None = None
    prompt_tokens: float | None = None
    generated: float | None = None
    finished: float | None = None

    @property
    def rests(self) -> bool:
        """Whether no reported figure shows that the server is working."""
        return not any((self.running, self.waiting, self.memory))


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation and its outcome: answers in the order of the requests, or a dropped stream's prompt.

    Where events are heard, ``messages`` are those that came until the server was quiet, and ``salts`` the
    texts of the namespaces that were sent, one for each answer. ``is_noisy``: it did not become quiet, so
    that events of this step may stand behind a later one; nor did a server whose stream was dropped.
    """

    operation: Operation
    answers: tuple[Answer, ...] = ()
    dropped: tuple[int, ...] = ()
    figures: Figures | None = None
    messages: tuple[Any, ...] = ()
    salts: tuple[str, ...] = ()
    is_noisy: bool = False


Way: TypeAlias = Literal["salt", "flag", "reset", "other"]
"""How a request is made cold: a fresh namespace, a field of it, an emptied cache, a second server."""


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of log-probabilities that count, and the spreads behind them; null: not measured.

    ``alone`` is the largest difference of the same cold request asked alone again, ``company`` the median of
    cold requests at once, ``warm`` the largest of requests that were served from what was just cached.
    An answer out of the cache counts from ``judged_warm``; up to ``doubtful`` it is rounding or a fault.
    """

    alone: float | None = None
    company: float | None = None
    warm: float | None = None
    judged: float
    judged_company: float
    judged_warm: float = 0.0
    doubtful: float = 0.0


FORMAT: Literal["pymllm-probe"] = "pymllm-probe"
"""The name of the format, which every file states."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """How a history was played: the server, and what is known of it.

    ``is_clean``: before the first step its cache had nothing of these prompts. ``has_salts``: it claims to
    keep namespaces apart; ``no_salts`` says why not. ``has_ids``: prompts were sent as token ids; otherwise
    as texts, an ASCII character for each token. ``hears_events``: its steps have the events of its cache.
    ``without``: laws and claims that are not its own.
    ``tolerance`` is that of the search that a smallest program is from.
    """

    format: Literal["pymllm-probe"] = FORMAT
    version: Literal[1] = 1
    server: str
    api: Literal["openai", "llama.cpp", "sglang"]
    cold: Way
    has_salts: bool
    is_clean: bool
    has_ids: bool = True
    no_salts: str = "namespaces were not tried"
    hears_events: bool = False
    seed: int | None = None
    model: str | None = None
    floor: float = 1e-4
    without: tuple[str, ...] = ()
    tolerance: Tolerance | None = None


class _Named(msgspec.Struct):
    """A record that reads only the name of a line's format."""

    format: str


class History(msgspec.Struct, frozen=True):
    """A head and its steps."""

    head: Head
    steps: tuple[Step, ...]

    @property
    def program(self) -> tuple[Operation, ...]:
        """The operations of the history, without outcomes."""
        return tuple(step.operation for step in self.steps)


# -- its file ----------------------------------------------------------------------------------------------


def dump_history(history: History) -> str:
    """Return a history as lines: the head, then a line for each step."""
    records: Iterable[msgspec.Struct] = (history.head, *history.steps)
    return "".join(f"{msgspec.json.encode(record).decode()}\n" for record in records)


def write_history(history: History, path: Path) -> None:
    """Write a history into a file."""
    write_text_file(path, dump_history(history))


def is_probe(path: Path) -> bool:
    """Tell whether a file begins like a probe's history; false also for an unreadable file."""
    try:
        with path.open("rb") as file:
            first = file.readline(_HEAD_MOST)
        return msgspec.json.decode(first, type=_Named).format == FORMAT
    except (OSError, ValueError, RecursionError):
        return False


def probe_schema() -> dict[str, Any]:
    """Return the JSON schema of a line of a probe's history, head or step."""
    _, parts = msgspec.json.schema_components((Head, Step), ref_template="#/$defs/{name}")
    head = parts["Head"]
    head["required"] = ["format", "version", *head["required"]]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a file of pymllm probe",
        "oneOf": [{"$ref": "#/$defs/Head"}, {"$ref": "#/$defs/Step"}],
        "$defs": parts,
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))  # empty tuples as lists
    return plain


def read_history(path: Path) -> History:
    """Read a history from an untrusted file; raise `TraceError` for an invalid line."""
    lines = read_lines(path)
    head = next((_decoded(path, number, line, Head) for number, line in lines), None)
    if head is None:
        raise TraceError(str(path), None, "it is empty; a history of pymllm probe begins with its head")
    return History(head, tuple(_checked(path, lines)))


def _checked(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[Step]:
    """Yield the steps; raise an error for a repeated request name, or a reference to no earlier request."""
    known: set[int] = set()
    for number, line in lines:
        step = _decoded(path, number, line, Step)
        operation = step.operation
        asks = asks_of(operation)
        named = [ask.after for ask in asks if ask.after is not None]
        if isinstance(operation, Drop) and operation.ask.after is not None:
            named.append(operation.ask.after)
        named += operation.of if isinstance(operation, Cold) else ()
        unknown = sorted(set(named) - known)
        if unknown:
            raise TraceError(str(path), number, f"request {unknown[0]} is named, and no earlier step made it")
        if twice := sorted({ask.id for ask in asks} & known):
            raise TraceError(str(path), number, f"request {twice[0]} was made before; an id names one")
        expected = len(operation.of) if isinstance(operation, Cold) else len(asks)
        if len(step.answers) != expected:
            wrong = f"it has {len(step.answers)} answers to {expected} requests"
            raise TraceError(str(path), number, wrong)
        known |= {ask.id for ask in asks}
        yield step


def _decoded(path: Path, number: int, line: str, kind: type[_S]) -> _S:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise TraceError(str(path), number, f"no {kind.__name__.lower()} of a probe: {why}") from error
