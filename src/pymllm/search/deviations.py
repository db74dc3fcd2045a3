"""The known deviations of an implementation from the laws, in a hand-written file: read, applied, reported.

A table for each deviation, by its name::

    [failed-alloc-merges]
    law = "X4"
    adapter = "sglang-*"
    operation = "alloc"
    kind = "other contract"
    reason = "a failed allocation merges what was freed lazily"
    link = "peers/findings/sglang/failed-alloc-merges.md"
    versions = "sglang>=0.5.15"

`pymllm.history.files.Deviation` says what the fields mean.
"""

from __future__ import annotations

import glob
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import InvalidRequirement, Requirement

from pymllm.adapters.entry import Checkout
from pymllm.adapters.registry import adapters
from pymllm.documents.searches import AdapterRow, DeviationRow, ViolationRow
from pymllm.errors import UsageError
from pymllm.history.codec import decode, name_of
from pymllm.history.files import END, GO_ON, Deviation
from pymllm.history.operations import OPERATIONS
from pymllm.oracle.laws import find_law
from pymllm.text_file import cut, did_you_mean, read_text_file

_OPERATIONS = {name_of(operation): operation for operation in OPERATIONS}

KINDS = ("defect", "other contract", "open")
SHOWS, GONE, NOT_SEARCHED, OTHER_VERSION = "shows", "gone", "not searched", "other version"
"""Statuses of a deviation: seen in a program, not seen, not searched for, or of another version."""


def read_deviations(path: Path) -> tuple[Deviation, ...]:
    """Read a file of known deviations; raise `UsageError` with the wrong table and the right form."""
    try:
        tables = msgspec.toml.decode(read_text_file(path))
    except msgspec.DecodeError as error:
        raise UsageError(f"it is no TOML: {error}") from None
    return tuple(_read(name, table) for name, table in tables.items())


def _read(name: str, table: Any) -> Deviation:
    where = f"[{cut(name)}]"
    if not isinstance(table, Mapping):
        raise UsageError(f"{where} is {cut(repr(table))}; it must be a table with law and reason")
    try:
        deviation: Deviation = decode(Deviation, {**table, "name": name}, where)
        _check(deviation)
    except ValueError as error:
        text = str(error)
        raise UsageError(text if text.startswith(where) else f"{where}: {text}") from None
    return deviation


def _check(it: Deviation) -> None:
    find_law(it.law)
    if not it.reason.strip():
        raise ValueError("reason is empty; explain the deviation in a sentence, or say what to do about it")
    for field, value, choices in (("kind", it.kind, KINDS), ("then", it.then, (END, GO_ON))):
        if value not in choices:
            raise ValueError(f"{field} is {cut(repr(value))}; it must be one of {', '.join(choices)}")
    if it.where and not it.operation:
        raise ValueError("where names fields of an operation; say which operation")
    if it.operation:
        if it.operation not in _OPERATIONS:
            nearest = did_you_mean(it.operation, _OPERATIONS)
            raise ValueError(f"there is no operation {cut(repr(it.operation))}{nearest}")
        fields = _OPERATIONS[it.operation].__struct_fields__  # type: ignore[attr-defined]
        for field in it.where:
            if field not in fields:
                raise ValueError(
                    f"where: {it.operation} has no field {cut(repr(field))}; it has {', '.join(fields)}"
                )
    if it.versions:
        _required(it.versions)


def _required(text: str) -> Requirement | tuple[Checkout, str]:
    """Return the required package with its versions, or the checkout with its commit."""
    project, at, commit = text.partition("@")
    if at:
        known = {it.checkout.project: it.checkout for it in adapters() if it.checkout is not None}
        found = [it for name, it in known.items() if name.lower() == project.strip().lower()]
        if found and re.fullmatch("[0-9a-f]{7,40}", commit.strip()):
            return found[0], commit.strip()
        which = (
            f"one of {', '.join(known)}" if known else "of a plug-in, and none that is installed reads one"
        )
        raise ValueError(
            f"versions is {cut(repr(text))}; a checkout is {which}, with its commit, such as mllm@b9c3070"
        )
    try:
        return Requirement(text)
    except InvalidRequirement:
        raise ValueError(
            f"versions is {cut(repr(text))}; it must be a package with versions, such as sglang>=0.5.15,<0.6,"
            " or a checkout with its commit, such as mllm@b9c3070"
        ) from None


def is_of_version(deviation: Deviation) -> bool:
    """Tell whether a deviation applies to the installed or checked-out version; false without a version."""
    if not deviation.versions:
        return True
    required = _required(deviation.versions)
    if isinstance(required, tuple):
        checkout, commit = required
        return checkout.is_of(commit)
    try:
        return required.specifier.contains(version(required.name), prereleases=True)
    except PackageNotFoundError:
        return False


def tell_deviations(
    deviations: Sequence[Deviation], met: Mapping[str, tuple[Collection[str], Counter[str]]]
) -> tuple[DeviationRow, ...]:
    """Return the status of each deviation.

    ``met``: by adapter that was searched, the laws that apply to it, and programs by a deviation's name.
    """
    rows = []
    for it in deviations:
        own = {
            name: counts[it.name]
            for name, (laws, counts) in met.items()
            if fnmatchcase(name, it.adapter) and it.law in laws
        }
        programs = sum(own.values())
        status = SHOWS if programs else GONE if own else NOT_SEARCHED
        if not is_of_version(it):
            status = OTHER_VERSION
        adapters = tuple(name for name, count in own.items() if count)
        rows.append(DeviationRow(it.name, it.law, it.kind, it.reason, it.link, status, programs, adapters))
    return tuple(rows)


_RAISED = re.compile(r"message=(['\"])(.*?) ?(?:\(line \d+ of .*)?\1")
"""The text of an error without the line that raised it, which changes from release to release."""


def _said(found: ViolationRow) -> str:
    """Return a text by which other programs show the same violation: that of an error, or the message.

    Of that the longest part without a number, since those are of one program.
    """
    raised = _RAISED.search(found.observed or "")
    text = raised[2] if raised is not None else found.message
    return max(re.split(r"[\d\\]+", text), key=len).strip()


def begin_deviations(adapters: Iterable[AdapterRow], taken: Iterable[str] = ()) -> Iterator[str]:
    """Yield lines of a table for each violation, to be edited by hand; names in ``taken`` are not reused."""
    names = set(taken)
    for adapter in adapters:
        for found in adapter.violations:
            begin = name = f"{''.join(c if c.isalnum() else '-' for c in adapter.name)}-{found.law}".strip(
                "-"
            )
            number = 1
            while name in names:
                number += 1
                name = f"{begin}-{number}"
            names.add(name)
            fields = {
                "law": found.law,
                "adapter": glob.escape(adapter.name),
                "operation": found.operation,
                "says": _said(found),
                "kind": "open",
                "reason": f"not looked at yet: {found.message}",
                "program": found.file or "",
            }
            lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items() if value]
            yield "\n".join([f"[{name}]", *lines, ""])
