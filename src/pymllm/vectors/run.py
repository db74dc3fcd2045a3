"""The playing of all vectors of a kind on one adapter, in a process that the adapter may crash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pymllm.adapters.registry import find_adapter
from pymllm.machines.adapter_calls import load_class
from pymllm.vectors.format import Vector, VectorsHeader, load_folder
from pymllm.vectors.play import Played, play_on
from pymllm.work.workers import tell

Files = Mapping[str, tuple[VectorsHeader, tuple[Vector, ...]]]
"""The vectors of files, by kind."""


@dataclass(frozen=True, slots=True)
class Task:
    """An adapter, with vectors of every kind since only its class shows its own."""

    adapter: str
    files: Files


@dataclass(frozen=True, slots=True)
class Run:
    """The result of each vector of an adapter's kind; empty if no file has that kind."""

    adapter: str
    kind: str
    version: str
    played: tuple[tuple[Vector, Played], ...]


def load_all(folder: Path) -> Files:
    """Read every file of vectors in a folder; raise `TraceError` with the invalid file and line."""
    return {header.kind: (header, vectors) for header, vectors in load_folder(folder)}


def run_vectors(task: Task) -> Run:
    """Play the vectors of an adapter's kind, and report the number played after each."""
    made = load_class(find_adapter(task.adapter))
    if made.KIND not in task.files:
        return Run(task.adapter, made.KIND, "", ())
    header, vectors = task.files[made.KIND]
    played = []
    for number, vector in enumerate(vectors, 1):
        played.append((vector, play_on(vector, task.adapter, made)))
        tell(number)
    return Run(task.adapter, made.KIND, header.version, tuple(played))
