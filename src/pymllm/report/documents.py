"""What the report reads of each document: the fields that it shows, whatever else a document has.

A document's own module says everything that is in it. The records in `pymllm.report.search_documents` and
`pymllm.report.measured_documents` have the parts that a page, a feed or a trend needs, with the same names; a
field that an older document lacks has a default there. A comparison with peers is shown whole.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pymllm.history.records import decode
from pymllm.instrument.peer_comparison import PeerComparison
from pymllm.report.measured_documents import (
    DoctorDocument,
    GpuBenchmarksDocument,
    GpuMemoryDocument,
    ReplayDocument,
)
from pymllm.report.search_documents import FaultsDocument, SituationsDocument, SoakDocument, VerifyDocument

__all__ = ["DOCUMENTS", "AnyDocument", "read_document"]

AnyDocument = (
    VerifyDocument
    | FaultsDocument
    | SoakDocument
    | SituationsDocument
    | ReplayDocument
    | DoctorDocument
    | GpuMemoryDocument
    | PeerComparison
    | GpuBenchmarksDocument
)

DOCUMENTS: dict[str, tuple[int, type]] = {
    "pymllm.verify": (1, VerifyDocument),
    "pymllm.compare": (1, VerifyDocument),
    "pymllm.faults": (1, FaultsDocument),
    "pymllm.soak": (1, SoakDocument),
    "pymllm.situations": (1, SituationsDocument),
    "pymllm.replay": (1, ReplayDocument),
    "pymllm.doctor": (1, DoctorDocument),
    "pymllm.gpu-memory": (1, GpuMemoryDocument),
    "pymllm.peers": (1, PeerComparison),
    "pymllm.gpu-benchmarks": (1, GpuBenchmarksDocument),
}
"""By name: the version that is read, and what is read of it."""


def read_document(plain: Mapping[str, Any]) -> AnyDocument:
    """Read what the report shows of a document.

    Parameters
    ----------
    plain : mapping
        The document, as JSON has it.

    Raises
    ------
    ValueError
        It is none that a report shows, of a version that is not read here, or not whole; says which.
    """
    named = plain.get("schema")
    known = DOCUMENTS.get(named) if isinstance(named, str) else None
    if known is None:
        raise ValueError(f"a report shows no document {named!r}; it shows {', '.join(DOCUMENTS)}")
    version, kind = known
    if plain.get("version") != version:
        raise ValueError(
            f"version {plain.get('version')!r} of {named}; this version of pymllm reads {version}"
        )
    document: AnyDocument = decode(kind, _pruned(kind, plain), str(named))
    return document


def _pruned(kind: Any, plain: Any) -> Any:
    """Leave out what the records of a type do not have."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind) and isinstance(plain, Mapping):
        hints = typing.get_type_hints(kind)
        names = {it.name for it in fields(kind)}
        return {name: _pruned(hints[name], value) for name, value in plain.items() if name in names}
    if origin is tuple and isinstance(plain, list):
        return [_pruned(arguments[0], item) for item in plain]
    if origin is dict and isinstance(plain, Mapping):
        return {name: _pruned(arguments[1], value) for name, value in plain.items()}
    if origin is types.UnionType and plain is not None:
        records = [option for option in arguments if is_dataclass(option)]
        return _pruned(records[0], plain) if records else plain
    return plain
