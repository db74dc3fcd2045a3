"""The checks of a folder before its campaign is resumed, since the folder may come from anyone."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import structs

from pymllm.errors import UsageError
from pymllm.instrument.provenance import build_version
from pymllm.machines.registry import MACHINES
from pymllm.search.foreign_source import digest_adapter
from pymllm.soak.ledger import FILE, CampaignHeader, has_lines, read_ledger
from pymllm.soak.merging import Merged, merge_ledgers
from pymllm.soak.schedule import SIZES


def load_campaign(folder: Path) -> tuple[CampaignHeader, Merged]:
    """Read a campaign to resume, with its runs by number; raise `UsageError` if it cannot be resumed.

    It was written by another version: what it would go on with are other programs. Or several campaigns are
    in it, lines of one run that disagree, a place that no campaign has, or a link for its ledger.
    `TraceError` and `OSError` as of `read_ledger`.
    """
    if not stays_inside(folder / FILE, folder):
        raise UsageError(f"{folder}: {FILE} is a link to a file elsewhere; put the file in its place")
    merged = merge_ledgers([folder / FILE])
    headers = merged.headers
    if len(headers) > 1:
        raise UsageError(
            f"{folder} has {len(headers)} campaigns in one ledger; resume one that has a ledger of its own"
        )
    if headers[0].version != build_version():
        raise UsageError(
            f"{folder} is of version {headers[0].version}, which alone resumes it; this is {build_version()}"
        )
    if merged.conflicts:
        raise UsageError(f"{folder} has lines of one run that disagree; pymllm merge {folder} shows them")
    _refuse_strange_places(folder, headers[0])
    return next(it for it in read_ledger(folder / FILE) if isinstance(it, CampaignHeader)), merged


def stays_inside(path: Path, folder: Path) -> bool:
    """Tell whether a file of a campaign stays inside its folder when links are followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))  # circles included


def _refuse_strange_places(folder: Path, header: CampaignHeader) -> None:
    if any(not 0 <= kept.place < len(header.places) or kept.limit < 1 for kept in header.corpus):
        raise UsageError(f"{folder}: a run of the corpus is at a place that there is not, or has no length")
    if header.longest < 1:
        raise UsageError(f"{folder}: longest is {header.longest}; a run has 1 operation or more")
    for place in header.places:
        machines = [entry.name for entry in MACHINES.get(place.kind, ())]
        for what, value, known in (
            ("kind", place.kind, MACHINES),
            ("machine", place.machine, machines),
            ("size", place.size, SIZES),
        ):
            if value not in known:
                raise UsageError(f"{folder}: a {what} is {value!r}; it must be one of {', '.join(known)}")


def refuse_other_sources(folder: Path, header: CampaignHeader) -> None:
    """Raise `UsageError` if an adapter from outside this package has changed since the campaign began."""
    for name, source in dict.fromkeys((place.adapter, place.source) for place in header.places):
        if digest_adapter(name) != source:
            raise UsageError(
                f"the source of {name} changed since the campaign in {folder} began; begin a new one"
            )


def find_begun(folder: Path, header: CampaignHeader) -> tuple[CampaignHeader, Merged] | None:
    """Read a shard's header and runs in a folder; raise `UsageError` if it belongs to another campaign."""
    if not has_lines(folder / FILE):
        return None
    there, runs = load_campaign(folder)
    if structs.replace(there, versions=header.versions) != header:
        raise UsageError(
            f"{folder}: there is another campaign, or another shard; choose another folder, or pymllm "
            "resume that"
        )
    return there, runs
