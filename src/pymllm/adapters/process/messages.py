"""Every message of the protocol: what is said to a program and what it says, as records.

A message is one line: a JSON object whose ``say`` names its kind. Of an operation and of its outcome
`pymllm.adapters.process.wire` knows the form; all other fields are those of the records here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pymllm.adapters.process.field_notes import with_notes
from pymllm.adapters.process.wire import operations_schema, read_outcome
from pymllm.history.config_limits import check_config, config_schema
from pymllm.history.files import Config
from pymllm.history.operations import KINDS
from pymllm.history.outcomes import RESULTS, SIZE_NAMES, Effect, Outcome, outcome_schema
from pymllm.history.records import decode, decode_tagged, encode_tagged, name_of, tagged_schema_of
from pymllm.text_file import cut

__all__ = [
    "LINE_LIMIT",
    "PROTOCOL",
    "Advance",
    "Advanced",
    "Answer",
    "Audit",
    "Audited",
    "Broken",
    "Bye",
    "Error",
    "Hello",
    "Program",
    "Request",
    "Start",
    "Started",
    "Told",
    "protocol_schema",
    "read_answer",
    "word_for",
    "write_request",
]

PROTOCOL: Final = 1
"""The version that is spoken here."""

LINE_LIMIT: Final = 2**20
"""Most bytes of a line, its end included, in both directions."""

_MOST_CONFIGURATIONS: Final = 256

# -- said to the program -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """Begins the conversation; answered by `Program`.

    Parameters
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


@dataclass(frozen=True, slots=True)
class Start:
    """Asks for something new, and lets go of what there was; answered by `Started`.

    Parameters
    ----------
    config : dict
        One of those that the program offered, or one that somebody typed.
    seed : int
        For a program that draws: equal seeds, equal answers.
    """

    config: Config
    seed: int


@dataclass(frozen=True, slots=True)
class Advance:
    """Moves the clock, for a program that asked for it; answered by `Advanced`."""

    ticks: int
    flush: bool = True


@dataclass(frozen=True, slots=True)
class Audit:
    """Asks for a walk from inside, of a program that offers it; answered by `Audited`."""


@dataclass(frozen=True, slots=True)
class Bye:
    """Ends the conversation: the program ends, with status 0 and without an answer."""


Request = Hello | Start | Advance | Audit | Bye

# -- said by the program -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Program:
    """Says who answers; spelled ``hello``.

    Parameters
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


@dataclass(frozen=True, slots=True)
class Started:
    """Says that it is there; ``capabilities`` are those of this configuration, where they differ."""

    capabilities: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Advanced:
    """Says what the clock shows: the ticks since the `Start`."""

    clock: int


@dataclass(frozen=True, slots=True)
class Broken:
    """A law that a walk from inside found broken; ``expected`` and ``observed`` where they can be told."""

    law: str
    message: str
    expected: str | None = None
    observed: str | None = None


@dataclass(frozen=True, slots=True)
class Audited:
    """Says which laws were looked at, and the one that is broken, if one is."""

    laws: tuple[str, ...] = field(default_factory=tuple)
    broken: Broken | None = None


@dataclass(frozen=True, slots=True)
class Error:
    """Says, instead of any answer, that the program itself cannot go on; the conversation ends."""

    message: str


class Told(NamedTuple):
    """The outcome of one step; spelled ``outcome``. A tuple, which is made in half the time of a record."""

    step: int
    outcome: Outcome


Answer = Program | Started | Advanced | Audited | Error | Told

_ANSWERS: tuple[type, ...] = (Started, Advanced, Audited, Error)


def write_request(request: Request) -> dict[str, Any]:
    """Return what is said to a program as plain data."""
    return encode_tagged(request, "say")


def read_answer(plain: Any) -> Answer:
    """Return what a program said as a record; `ValueError` says what is wrong with it."""
    if not isinstance(plain, dict):
        raise ValueError(f"{cut(repr(plain))} is no object")
    said = plain.get("say")
    if said == "outcome":
        return _read_told(plain)
    if said == "hello":
        return _read_program(plain)
    answer: Answer = decode_tagged(_ANSWERS, _known(plain), "say")
    return answer


def word_for(kind: type) -> str:
    """Return how a kind of answer is spelled."""
    return {Program: "hello", Told: "outcome"}.get(kind) or name_of(kind)


def _known(plain: dict[str, Any]) -> dict[str, Any]:
    words = ["hello", "outcome", *map(name_of, _ANSWERS)]
    if plain.get("say") not in words:
        raise ValueError(f"say is {cut(repr(plain.get('say')))}; it must be one of {', '.join(words)}")
    return plain


def _read_told(plain: dict[str, Any]) -> Told:
    if len(plain) != 3 or type(plain.get("step")) is not int or "outcome" not in plain:
        raise ValueError("an outcome has say, step, which is an integer, and outcome, and nothing else")
    return Told(plain["step"], read_outcome(plain["outcome"]))


def _read_program(plain: dict[str, Any]) -> Program:
    fields = {key: value for key, value in plain.items() if key != "say"}
    program: Program = decode(Program, fields, "hello")
    if program.kind not in KINDS:
        raise ValueError(f"kind is {cut(repr(program.kind))}; it must be one of {', '.join(KINDS)}")
    if not 1 <= len(program.configurations) <= _MOST_CONFIGURATIONS:
        count = len(program.configurations)
        raise ValueError(f"configurations has {count:,}; it must have 1 to {_MOST_CONFIGURATIONS}")
    for config in program.configurations:
        check_config(config, program.kind)
    return program


# -- the schema ----------------------------------------------------------------------------------------------


@functools.cache
def protocol_schema() -> dict[str, Any]:
    """Describe every message as a JSON schema: ``$defs`` has one for each, by who says it and its name."""
    requests = _named("to-program", (Hello, Start, Advance, Audit, Bye))
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
    answers = _named("from-program", (Program, *_ANSWERS))
    hello = answers["from-program-hello"] = answers.pop("from-program-program")
    hello["properties"].update(
        say={"const": "hello"}, protocol={"const": PROTOCOL}, kind={"enum": list(KINDS)}
    )
    hello["properties"]["configurations"].update(
        items=config_schema(), minItems=1, maxItems=_MOST_CONFIGURATIONS
    )
    answers["from-program-outcome"] = {
        "type": "object",
        "description": "What an operation did.",
        "properties": {
            "say": {"const": "outcome"},
            "step": {"type": "integer", "minimum": 1},
            "outcome": _outcome_schema(),
        },
        "required": ["say", "step", "outcome"],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"One line of the pymllm process protocol, version {PROTOCOL}",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in (*requests, *answers)],
        "$defs": {**requests, **answers},
    }


def _named(speaker: str, kinds: tuple[type, ...]) -> dict[str, Any]:
    described = tagged_schema_of(kinds, "say")["oneOf"]
    return {
        f"{speaker}-{name_of(kind)}": with_notes(schema, kind)
        for kind, schema in zip(kinds, described, strict=True)
    }


def _outcome_schema() -> dict[str, Any]:
    schema: dict[str, Any] = with_notes(outcome_schema(), Outcome)
    results, effects = schema["properties"]["result"], schema["properties"]["effects"]
    results["oneOf"] = [
        with_notes(found, kind) for found, kind in zip(results["oneOf"], RESULTS, strict=True)
    ]
    effects["items"] = with_notes(effects["items"], Effect)
    schema["properties"]["sizes"]["propertyNames"] = {"enum": sorted(SIZE_NAMES)}
    return schema
