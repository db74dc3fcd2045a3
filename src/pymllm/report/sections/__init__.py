"""The sections of a page, by subject; a terminal shows those of a single document."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from pymllm.documents.campaigns import SoakDocument
from pymllm.documents.curves import CurveDocument
from pymllm.documents.faults import FaultsDocument, VectorsDocument
from pymllm.documents.probes import ProbeDocument
from pymllm.documents.replays import ReplayDocument
from pymllm.documents.runs import DiffDocument
from pymllm.documents.searches import CompareDocument, VerifyDocument
from pymllm.documents.served import ServedDocument
from pymllm.documents.watches import WatchDocument
from pymllm.instrument.documents import Document
from pymllm.report.blocks import PAGE, TERMINAL, Part, Section, Table, Tile, seen_on
from pymllm.report.loading import LoadedRuns, Run
from pymllm.report.outcomes import Outcome
from pymllm.report.sections.campaigns import (
    make_faults_section,
    make_soak_section,
    tell_faults,
    tell_soaks,
)
from pymllm.report.sections.changes import make_changes_section, tell_changes
from pymllm.report.sections.curves import make_capacity_section
from pymllm.report.sections.figures import make_gpu_section, make_peers_section, make_trends_section
from pymllm.report.sections.machines import make_machines_section, make_memory_section, make_runs_section
from pymllm.report.sections.probes import make_probes_section, tell_probes
from pymllm.report.sections.releases import make_releases_section
from pymllm.report.sections.replays import make_hit_rate_section, make_latency_section
from pymllm.report.sections.searches import make_goals_section, make_laws_section, tell_searches
from pymllm.report.sections.served import make_served_section
from pymllm.report.sections.soaking import make_campaign_section
from pymllm.report.sections.streams import make_streams_section, tell_streams
from pymllm.report.sections.vectors import make_vectors_section, tell_vectors
from pymllm.report.sections.verification import make_compare_section, make_verify_section

SECTIONS: Mapping[str, Callable[[Sequence[Run]], Iterable[Part]]] = {
    "laws": make_laws_section,
    "servers": make_probes_section,
    "vectors": make_vectors_section,
    "streams": make_streams_section,
    "releases": make_releases_section,
    "changes": make_changes_section,
    "faults": make_faults_section,
    "goals": make_goals_section,
    "soak": make_soak_section,
    "trends": make_trends_section,
    "peers": make_peers_section,
    "gpu": make_gpu_section,
    "hit-rate": make_hit_rate_section,
    "capacity": make_capacity_section,
    "served": make_served_section,
    "latency": make_latency_section,
    "memory": make_memory_section,
    "machines": make_machines_section,
}
"""Functions that make each section, in the order of the page; the list of runs comes last. A section without
parts is left out."""

_TERMINAL: Mapping[type[Document], tuple[str, Callable[[Sequence[Run]], Iterable[Part]]]] = {
    VerifyDocument: ("verify", make_verify_section),
    CompareDocument: ("laws", make_compare_section),
    CurveDocument: ("capacity", make_capacity_section),
    DiffDocument: ("changes", make_changes_section),
    FaultsDocument: ("faults", make_faults_section),
    ProbeDocument: ("servers", make_probes_section),
    ReplayDocument: ("hit-rate", make_hit_rate_section),
    ServedDocument: ("served", make_served_section),
    SoakDocument: ("soak", make_campaign_section),
    VectorsDocument: ("vectors", make_vectors_section),
    WatchDocument: ("streams", make_streams_section),
}
"""The section that a terminal shows for each kind of document, with the function that makes it."""

_BRIEF = (SoakDocument, VerifyDocument)
"""Documents that a terminal shows daily, so that most of their words are explained only on demand."""

_OUTCOMES: Sequence[Callable[[Sequence[Run]], Outcome]] = (
    tell_searches,
    tell_changes,
    tell_soaks,
    tell_faults,
    tell_vectors,
    tell_probes,
    tell_streams,
)
"""Functions that return the outcome of each kind of results, in the order of a summary."""

TEXTS: Mapping[str, Any] = tomllib.loads((files(__package__) / "texts.toml").read_text(encoding="utf-8"))
"""The title, lead, source and words of each section; the key "words" has words of several sections."""


def tell_all(runs: Sequence[Run]) -> list[Outcome]:
    """Return the outcome of each kind of results in some runs."""
    return [tell(runs) for tell in _OUTCOMES]


def make_sections(loaded: LoadedRuns) -> list[Section]:
    """Return every section that the runs have content for, and the list of runs."""
    found: dict[str, Sequence[Part]] = {
        id: tuple(seen_on(PAGE, make(loaded.runs))) for id, make in SECTIONS.items()
    }
    absent = [TEXTS[id] for id, parts in found.items() if not parts and "brings" in TEXTS[id]]
    found["runs"] = tuple(make_runs_section(loaded, absent))
    explained: set[str] = set()
    return [_section(id, parts, explained) for id, parts in found.items() if parts]


def parts_of(document: Document, *, verbose: bool = False) -> tuple[list[Part], dict[str, str]]:
    """Return the parts of a document that a terminal shows, and the meanings of words in them."""
    id, make = _TERMINAL[type(document)]
    run = Run("this run", "", "", "", documents=(document,))
    parts = list(seen_on(TERMINAL, make([run]), verbose=verbose))
    words = TEXTS["words"] | TEXTS[id].get("words", {})
    heads, signs = _heads(parts), set(_signs(parts))
    told = [*(head for head in heads if head in words), *(word for word in words if word in signs)]
    if type(document) in _BRIEF and not verbose:
        told = [word for word in told if len(word) == 1]
    return parts, {word: words[word] for word in told}


def _signs(parts: Iterable[Part]) -> Iterator[str]:
    """Yield the texts of cells, and separately the signs and other words in them."""
    texts = {cell.text for it in parts if isinstance(it, Table) for row in it.rows for cell in row}
    for text in texts:
        words = text.split(" ")
        yield from (text, *(word for word in words if len(word) == 1 and not word.isalnum()))
        yield " ".join(word for word in words if len(word) > 1 or word.isalnum())


def _heads(parts: Iterable[Part]) -> dict[str, None]:
    """Return the headings of all columns once, in order."""
    tables = (it for it in parts if isinstance(it, Table))
    return dict.fromkeys(column.name for table in tables for column in table.columns)


def _section(id: str, parts: Sequence[Part], explained: set[str]) -> Section:
    """Return a section; a word that several sections use is explained only in the first."""
    texts, common = TEXTS[id], TEXTS["words"]
    words = {word: common[word] for word in _heads(parts) if word in common and word not in explained}
    words |= texts.get("words", {})
    explained.update(words)
    return Section(
        id,
        texts["title"],
        texts["lead"],
        words,
        [it for it in parts if not isinstance(it, Tile)],
        [it for it in parts if isinstance(it, Tile)],
    )
