"""The file of a history as JSON lines: a header, then one line per step.

::

    {"format": "pymllm-history", "schema": 1, "adapter": "radix", "kind": "prefix", "config": {...}, ...}
    {"step": 1, "op": {"op": "alloc", "tokens": 2}, "outcome": {"result": {"is": "slots", "slots": [1, 2]}}}
    {"step": 2, "op": {"op": "match", "key": {"tokens": [7, 7]}}, "outcome": {...}}

Step numbers only grow; gaps are allowed, so that dropping lines leaves every reference valid. A line
without an outcome has not been run: a program is a history of such lines. A file may have several
histories, one behind the other, each with a ``name`` in its header.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from pymllm.errors import InvariantViolation, TraceError
from pymllm.history.claims import all_claims
from pymllm.history.codec import Record, decode, encode, json_reader, name_of, write_json
from pymllm.history.config_limits import check_config, config_schema
from pymllm.history.operations import KINDS, Operation
from pymllm.history.outcomes import Outcome
from pymllm.history.schema import schema_of
from pymllm.text_file import NumberedLine, cut, read_json, read_lines, write_text_file

FORMAT = "pymllm-history"
SCHEMA = 1
"""The version of the format; a reader refuses any other."""

Config = dict[str, int | str | bool | None]
"""The configuration of an implementation: its settings by name, such as ``{"page_size": 4}``."""


class PlayedAct(Record, frozen=True):
    """One act of a machine: the name of a method, and its arguments by name."""

    name: str
    arguments: tuple[tuple[str, int], ...] = ()


class PlayedActs(Record, frozen=True):
    """The acts of a machine, named by its class, that led to the operations of a program.

    - ``audit``: Whether the implementation was walked from inside after every step.
    """

    machine: str
    audit: bool
    acts: tuple[PlayedAct, ...]


END, GO_ON = "end", "go on"
"""What happens after a deviation in a program: it ends, or the deviation counts as right."""


class Deviation(Record, frozen=True):
    """A known deviation from a law, which a search passes over.

    - ``name``: Of its own.
    - ``law``: The law that it breaks.
    - ``reason``: Why it is that way, in words.
    - ``kind``: ``defect``, ``other contract``, or ``open`` where nobody has decided.
    - ``adapter``: A pattern of names of adapters, as of a shell.
    - ``operation``, ``where``: The operation that breaks the law, and values of its fields; empty for any.
    - ``config``: Settings of the configurations that show it.
    - ``says``: What stands in the message.
    - ``then``: ``end``: the program ends there. ``go on``: what was seen counts as right, and it goes on.
    - ``link``: Where it is talked about.
    - ``versions``: Whom it is known of, such as ``sglang>=0.5.15,<0.6``, or ``mllm@b9c3070`` for a checkout.
    - ``program``: A file that shows it.
    """

    name: str
    law: str
    reason: str
    kind: str = "open"
    adapter: str = "*"
    operation: str = ""
    where: dict[str, int | str | bool | None] = msgspec.field(default_factory=dict)
    config: Config = msgspec.field(default_factory=dict)
    says: str = ""
    then: str = END
    link: str = ""
    versions: str = ""
    program: str = ""

    def is_of(self, adapter: str, config: Mapping[str, object]) -> bool:
        """Tell whether an adapter in a configuration may show the deviation."""
        return fnmatchcase(adapter, self.adapter) and self.config.items() <= config.items()

    def covers(self, operation: Operation | None, violation: InvariantViolation) -> bool:
        """Tell whether this deviation explains a violation in an operation."""
        if violation.law != self.law or self.says not in str(violation):
            return False
        if not self.operation:
            return True
        if operation is None or name_of(type(operation)) != self.operation:
            return False
        return all(getattr(operation, field) == value for field, value in self.where.items())


class Header(Record, frozen=True):
    """The header of a history: the implementation, its configuration, and the origin of the program.

    - ``config``: What the adapter was built with.
    - ``capabilities``: What it claims, sorted.
    - ``seed``: Of the search that found the program.
    - ``versions``: Of the packages involved.
    - ``note``: Why it was kept, such as the violated law.
    - ``scenario``: The acts behind the operations, which show again what an engine does wrong.
    - ``deviations``: What it was known to do otherwise, and was not to be told of again.
    - ``specification``: The version in whose words it claims; empty before 2.1.
    - ``limits``: Operations that it cannot carry out in some form, each with the reason (X9).
    - ``name``: Of the program, in a file of several.
    """

    adapter: str
    kind: str
    config: Config = msgspec.field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    seed: int | None = None
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    note: str = ""
    scenario: PlayedActs | None = None
    deviations: tuple[Deviation, ...] = ()
    specification: str = ""
    limits: dict[str, str] = msgspec.field(default_factory=dict)
    name: str = ""

    def known(self, operation: Operation | None, violation: InvariantViolation) -> Deviation | None:
        """Return the known deviation that covers a violation, if there is any."""
        return next((it for it in self.deviations if it.covers(operation, violation)), None)

    @property
    def claims(self) -> frozenset[str]:
        """The capabilities with all claims that they imply."""
        return all_claims(frozenset(self.capabilities), self.specification)


class Step(Record, frozen=True, rename={"number": "step", "operation": "op"}):
    """One operation and its outcome, ``None`` if the operation has not been run."""

    number: int
    operation: Operation
    outcome: Outcome | None = None


@dataclass(slots=True)
class History:
    """A header and the steps so far."""

    header: Header
    steps: list[Step] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.steps)


def dump_history(history: History) -> Iterator[str]:
    """Yield the lines of a history in JSON, without newlines."""
    yield dump_header(history.header)
    yield from map(dump_step, history.steps)


def dump_header(header: Header) -> str:
    """Return the first line of a history, without the newline."""
    return json.dumps({"format": FORMAT, "schema": SCHEMA, **encode(header)})


def dump_step(step: Step) -> str:
    """Return the line of a step, without the newline."""
    return write_json(step)


def write_history(history: History, path: Path) -> None:
    """Write a history to a file; an existing file is replaced once all is written."""
    write_text_file(path, "".join(f"{line}\n" for line in dump_history(history)))


def load_history(path: Path) -> History:
    """Read a history from a file; raise `TraceError` with the invalid line and the reason."""
    return _read_only(read_lines(path), str(path))


def load_histories(path: Path) -> dict[str, History]:
    """Read all histories in a file, by the names in their headers; raise errors as `load_history`."""
    found: dict[str, History] = {}
    for history in _read_each(read_lines(path), str(path)):
        name = history.header.name
        if name in found:
            raise TraceError(str(path), None, f"two programs have the name {cut(repr(name))}")
        found[name] = history
    return found


def read_history(lines: Iterable[str], source: str) -> History:
    """Read a history from lines of JSON; ``source`` is their name in a `TraceError`."""
    return _read_only(enumerate(lines, 1), source)


def _read_only(lines: Iterable[NumberedLine], source: str) -> History:
    first, *more = _read_each(lines, source)
    if more:
        names = ", ".join(it.header.name for it in (first, *more))
        raise TraceError(source, None, f"has several programs; add # and the name of one: {cut(names, 200)}")
    return first


def _read_each(lines: Iterable[NumberedLine], source: str) -> Iterator[History]:
    history: History | None = None
    for number, line in lines:
        if not line.strip():
            continue
        try:
            if history is None or _is_header(line):
                if history is not None:
                    yield history
                history = History(_read_header(read_json(line)))
                continue
            step, last = _read_step(line), history.steps[-1].number if history.steps else 0
            if step.number <= last:
                raise ValueError(f"step is {cut(repr(step.number))}; it must be an integer above {last}")
            history.steps.append(step)
        except ValueError as error:
            raise TraceError(source, number, str(error)) from None
    if history is None:
        raise TraceError(source, None, "empty; a history begins with its header")
    yield history


def _is_header(line: str) -> bool:
    """Tell whether a line begins a history, which the field ``format`` shows."""
    if FORMAT not in line:
        return False
    plain = read_json(line)
    return isinstance(plain, Mapping) and "format" in plain


def _read_header(plain: Any) -> Header:
    if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
        raise ValueError(f'a history begins with a header {{"format": "{FORMAT}", ...}}')
    if plain.get("schema") != SCHEMA:
        raise ValueError(f"schema is {cut(repr(plain.get('schema')))}; this version reads {SCHEMA}")
    fields = {key: value for key, value in plain.items() if key not in ("format", "schema")}
    header: Header = decode(Header, fields, "header")
    if header.kind not in KINDS:
        raise ValueError(f"kind is {cut(repr(header.kind))}; it must be one of {', '.join(KINDS)}")
    check_config(header.config, header.kind)
    return header


_read_step = json_reader(Step)


def history_schema() -> dict[str, Any]:
    """Return the JSON schema of a line of a history, header or step."""
    header = schema_of(Header)
    header["properties"] = {"format": {"const": FORMAT}, "schema": {"const": SCHEMA}, **header["properties"]}
    header["properties"]["kind"] = {"enum": list(KINDS)}
    header["properties"]["config"] = config_schema()
    header["required"] = ["format", "schema", *header["required"]]
    step = schema_of(Step)
    step["properties"]["step"]["minimum"] = 1
    step["properties"]["outcome"] = schema_of(Outcome)  # a line has it, or has it not
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a pymllm history",
        "oneOf": [header, step],
    }
