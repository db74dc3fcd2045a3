"""What came of making a program smaller, for ``pymllm shrink``: as text and as a document."""

from __future__ import annotations

from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from pymllm.cli.violation_text import explain, mistake_lines
from pymllm.conformance.acting import FoundViolation
from pymllm.conformance.program_text import write_program
from pymllm.conformance.reduction import count_tokens
from pymllm.history.files import Config, History
from pymllm.history.records import encode, schema_of
from pymllm.oracle.laws import find_law

__all__ = ["SCHEMA", "VERSION", "Shrunk", "make_document", "make_text", "shrink_schema"]

SCHEMA = "pymllm.shrink"
VERSION = 1
_MOST_PRINTED = 100


@dataclass(frozen=True, slots=True)
class Shrunk:
    """One program made smaller.

    Parameters
    ----------
    file : str
        Where it was.
    output : str or None
        Where the small one is; ``None`` where it could not be written.
    before, after : FoundViolation
        What each breaks.
    plays : int
        Programs that were run for it.
    seconds : float
        That it took.
    misfits : dict of str to int
        Those of them that could not be run, by the class of the error that stopped them.
    is_rerun : bool
        Whether the operations of the small one, run again, break the law: who tells it does not run them.
    """

    file: str
    output: str | None
    before: FoundViolation
    after: FoundViolation
    plays: int
    seconds: float
    misfits: dict[str, int] = field(default_factory=dict)
    is_rerun: bool = False

    @property
    def again(self) -> str | None:
        """What to type to see the violation again; ``None`` where nothing shows it."""
        if self.output is None or (not self.is_rerun and self.after.scenario is None):
            return None
        command = "rerun" if self.is_rerun else "shrink"
        return f"pymllm {command} {quote(self.output)} --adapter {quote(self.after.history.header.adapter)}"


# -- as text -----------------------------------------------------------------------------------------------


def make_text(shrunk: Shrunk) -> str:
    """Return the lines that people read: the law, what was before and is now, and the program."""
    after = shrunk.after
    law, adapter = after.violation.law, after.history.header.adapter
    lines = [f"{law}  VIOLATED by {adapter}: {find_law(law).sentence}"]
    lines += explain(after.violation, after.history)
    lines += _sizes(shrunk.before.history, after.history)
    lines.append(_how(shrunk))
    lines += mistake_lines(after.mistakes)
    if len(after.history) <= _MOST_PRINTED:  # nobody reads more, and the file has it
        lines += [f"        {line}".rstrip() for line in write_program(after.history).splitlines()]
    if shrunk.output is not None:
        lines.append(f"    written    {shrunk.output}")
    if shrunk.again is not None:
        lines.append(f"    again      {shrunk.again}")
    return "\n".join(lines)


def _sizes(before: History, after: History) -> list[str]:
    """Return lines that set what became smaller beside what it was."""
    rows = [
        ("operations", len(before), len(after)),
        ("tokens", count_tokens(before), count_tokens(after)),
        *(
            (key, value, after.header.config[key])
            for key, value in before.header.config.items()
            if value != after.header.config[key]
        ),
    ]
    return [f"    {name:11}{was:,} -> {now:,}" for name, was, now in rows]


def _how(shrunk: Shrunk) -> str:
    end = "more --seconds may find a smaller one" if shrunk.after.is_unfinished else "no part of it can go"
    misfits = ", ".join(f"{name} {count:,}" for name, count in shrunk.misfits.items())
    left = f"; {sum(shrunk.misfits.values()):,} could not be run ({misfits})" if misfits else ""
    return f"    programs   {shrunk.plays:,} were run in {shrunk.seconds:.1f} s{left}; {end}"


# -- as a document -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """How large a program is: operations, tokens of keys and prompts, and what is configured."""

    operations: int
    tokens: int
    config: Config


@dataclass(frozen=True, slots=True)
class Document:
    """What ``pymllm shrink --json`` prints; ``again`` is null where nothing shows the violation again.

    ``misfits`` counts programs that could not be run, by error; ``mistakes`` are this package's own.
    """

    schema: str
    version: int
    file: str
    output: str | None
    adapter: str
    kind: str
    law: str
    message: str
    expected: str | None
    observed: str | None
    before: ProgramRow
    after: ProgramRow
    finished: bool
    programs: int
    seconds: float
    program: str
    again: str | None
    misfits: dict[str, int]
    mistakes: tuple[str, ...]


def make_document(shrunk: Shrunk) -> dict[str, Any]:
    """Put what came of it into plain data, valid under `shrink_schema`."""
    history, violation = shrunk.after.history, shrunk.after.violation
    document = Document(
        SCHEMA,
        VERSION,
        shrunk.file,
        shrunk.output,
        history.header.adapter,
        history.header.kind,
        violation.law,
        violation.message,
        violation.expected,
        violation.observed,
        _row(shrunk.before.history),
        _row(history),
        not shrunk.after.is_unfinished,
        shrunk.plays,
        round(shrunk.seconds, 3),
        write_program(history),
        shrunk.again,
        shrunk.misfits,
        shrunk.after.mistakes,
    )
    plain: dict[str, Any] = encode(document)
    return plain


def _row(history: History) -> ProgramRow:
    return ProgramRow(len(history), count_tokens(history), history.header.config)


def shrink_schema() -> dict[str, Any]:
    """Describe the document as a JSON schema (draft 2020-12)."""
    found = schema_of(Document)
    found["properties"] |= {"schema": {"const": SCHEMA}, "version": {"const": VERSION}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pymllm shrink", **found}
