"""Every message of the protocol: what is said to a program and what it says, as records.

A message is one line: a JSON object whose ``say`` names its kind. Of an operation and of its outcome
`pymllm.adapters.process.wire` knows the form; all other fields are those of the records here.
"""

from __future__ import annotations

import functools
import typing
from typing import Any, Final

import msgspec

from pymllm.adapters.process.wire import operations_schema, read_line
from pymllm.history.asked import find_wrong_limit
from pymllm.history.codec import Record, json_reader, snake_case
from pymllm.history.config_limits import check_config, config_schema
from pymllm.history.files import Config
from pymllm.history.operations import KINDS
from pymllm.history.outcomes import SIZE_NAMES, Outcome
from pymllm.history.schema import schema_of
from pymllm.text_file import cut

PROTOCOL: Final = 1
"""The version that is spoken here."""

LINE_LIMIT: Final = 2**20
"""Most bytes of a line, its end included, in both directions."""

_MOST_CONFIGURATIONS: Final = 256


class _Message(Record, frozen=True, tag_field="say", tag=snake_case):
    """A message, whose kind is in the field ``say``."""


# -- said to the program -------------------------------------------------------------------------------------


class Hello(_Message, frozen=True):
    """Begins the conversation; answered by `Program`.

    Attributes
    ----------
    protocol : tuple of int
        Versions that are spoken here; the program picks one.
    driver : str
        Who asks, for the program's log.
    line_limit : int
        Most bytes of a line in both directions, its end included.
    """

    protocol: tuple[int, ...]
    driver: str
    line_limit: int


class Start(_Message, frozen=True):
    """Asks for a new implementation in place of the last one; answered by `Started`.

    Attributes
    ----------
    config : dict
        One of those that the program offered, or one that somebody typed.
    seed : int
        For a program that draws: equal seeds, equal answers.
    """

    config: Config
    seed: int


class Advance(_Message, frozen=True):
    """Moves the clock, for a program that asked for it; answered by `Advanced`."""

    ticks: int
    flush: bool = True


class Audit(_Message, frozen=True):
    """Asks for a walk from inside, if the program offers walks; answered by `Audited`."""


class Bye(_Message, frozen=True):
    """Ends the conversation: the program ends, with status 0 and without an answer."""


Request = Hello | Start | Advance | Audit | Bye

# -- said by the program -------------------------------------------------------------------------------------


class Program(_Message, frozen=True, tag="hello"):
    """Introduces the program; spelled ``hello``.

    Attributes
    ----------
    protocol : int
        The version that is spoken from here on.
    name, version, language : str
        Of the implementation.
    kind : str
        What it is, one of `pymllm.history.operations.KINDS`.
    capabilities : tuple of str
        What it claims, of `pymllm.adapters.base.CAPABILITIES`.
    configurations : tuple of dict
        What to examine where nobody asks for anything else: small pages, tiny pools.
    clock : bool
        Whether its recency goes by the clock of `Advance`, which then comes before each operation.
    audits : bool
        Whether it can be asked for an `Audit`.
    source : str
        Where it comes from, such as an address.
    limits : dict
        Operations that it cannot carry out in some form, by name, each with the reason in words (X9).
    """

    protocol: int
    name: str
    version: str
    language: str
    kind: str
    capabilities: tuple[str, ...]
    configurations: tuple[Config, ...]
    clock: bool = False
    audits: bool = False
    source: str = ""
    limits: dict[str, str] = msgspec.field(default_factory=dict)


class Started(_Message, frozen=True):
    """Tells that the implementation is built; ``capabilities`` are its configuration's, where they differ."""

    capabilities: tuple[str, ...] | None = None


class Advanced(_Message, frozen=True):
    """Tells the time of the clock: the ticks since the `Start`."""

    clock: int


class Broken(Record, frozen=True):
    """A law that a walk from inside found broken, with ``expected`` and ``observed`` if known."""

    law: str
    message: str
    expected: str | None = None
    observed: str | None = None


class Audited(_Message, frozen=True):
    """Tells the laws that a walk checked, and the broken one, if any."""

    laws: tuple[str, ...] = ()
    broken: Broken | None = None


class Error(_Message, frozen=True):
    """Tells, in place of any answer, that the program itself cannot go on; the conversation ends."""

    message: str


class Told(_Message, frozen=True, tag="outcome"):
    """The outcome of one step; spelled ``outcome``."""

    step: int
    outcome: Outcome


Answer = Program | Started | Advanced | Audited | Error | Told

_read = json_reader(Answer, parse=read_line)


def read_answer(line: bytes) -> Answer:
    """Return a program's line as a record; `ValueError` names the error in a wrong line."""
    answer: Answer = _read(line)
    if isinstance(answer, Program):
        _check(answer)
    return answer


def word_for(kind: type) -> str:
    """Return the name of a kind of message."""
    word: str = kind.__struct_config__.tag  # type: ignore[attr-defined]
    return word


def _check(program: Program) -> None:
    if program.kind not in KINDS:
        raise ValueError(f"kind is {cut(repr(program.kind))}; it must be one of {', '.join(KINDS)}")
    if not 1 <= len(program.configurations) <= _MOST_CONFIGURATIONS:
        count = len(program.configurations)
        raise ValueError(f"configurations has {count:,}; it must have 1 to {_MOST_CONFIGURATIONS}")
    for config in program.configurations:
        check_config(config, program.kind)
    wrong = find_wrong_limit(program.kind, program.limits)
    if wrong is not None:
        raise ValueError(f"limits {wrong}")


# -- the schema ----------------------------------------------------------------------------------------------


@functools.cache
def protocol_schema() -> dict[str, Any]:
    """Describe every message as a JSON schema: ``$defs`` has one for each, by who says it and its name."""
    requests = _named("to-program", typing.get_args(Request))
    requests["to-program-op"] = {
        "type": "object",
        "description": "Asks for an operation; answered by an outcome.",
        "properties": {
            "say": {"const": "op"},
            "step": {"type": "integer", "minimum": 1},
            "op": operations_schema(),
            "flush": {"type": "boolean"},
        },
        "required": ["say", "step", "op"],
        "additionalProperties": False,
    }
    answers = _named("from-program", typing.get_args(Answer))
    hello = answers["from-program-hello"]["properties"]
    hello.update(protocol={"const": PROTOCOL}, kind={"enum": list(KINDS)})
    hello["configurations"].update(items=config_schema(), minItems=1, maxItems=_MOST_CONFIGURATIONS)
    told = answers["from-program-outcome"]["properties"]
    told["step"]["minimum"] = 1
    told["outcome"]["properties"]["sizes"]["propertyNames"] = {"enum": sorted(SIZE_NAMES)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"One line of the pymllm process protocol, version {PROTOCOL}",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in (*requests, *answers)],
        "$defs": {**requests, **answers},
    }


def _named(speaker: str, kinds: tuple[type, ...]) -> dict[str, Any]:
    return {f"{speaker}-{word_for(kind)}": schema_of(kind) for kind in kinds}
