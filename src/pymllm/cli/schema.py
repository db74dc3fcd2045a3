"""The command ``pymllm schema``: the JSON schemas of printed documents and written files."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import click

from pymllm import documents
from pymllm.cli.output import say
from pymllm.documents.runs import schema_of_document
from pymllm.instrument.documents import Document

_OF_LINES = {
    "corpus": ("a line of a soak's corpus", "pymllm.soak.corpus:corpus_schema"),
    "gpu-memory": ("a line of pytest --gpu-memory-log", "pymllm.instrument.gpu_memory:gpu_memory_schema"),
    "history": ("a line of a program's file", "pymllm.history.files:history_schema"),
    "ledger": ("a line of a soak's ledger", "pymllm.soak.ledger:ledger_schema"),
    "ledger-measured": (
        "a line that merge measured",
        "pymllm.soak.measured:measured_schema",
    ),
    "peers": ("the file that tox -e bench-peers writes", "pymllm.instrument.peer_comparison:peers_schema"),
    "probe-file": ("a line of a file of pymllm probe", "pymllm.probing.records:probe_schema"),
    "protocol": ("a line sent to a --command, or by it", "pymllm.adapters.process.messages:protocol_schema"),
    "vectors": ("a line of a file of vectors", "pymllm.vectors.format:vectors_schema"),
    "trace": ("a line of a trace that pymllm trace writes", "pymllm.traces.own:trace_schema"),
    "shards": ("the plan of a campaign of soak --executor", "pymllm.soak.spread_plan:plan_schema"),
    "run": ("a line of a run in a store", "pymllm.report.store:run_schema"),
}


def _documents(of: type[Document] = Document) -> Iterator[tuple[str, type[Document]]]:
    """Yield the name and record of every document that commands print, all of which have been imported."""
    for record in of.__subclasses__():
        yield str(record.__struct_config__.tag).removeprefix("pymllm."), record
        yield from _documents(record)


for _module in pkgutil.iter_modules(documents.__path__, f"{documents.__name__}."):
    importlib.import_module(_module.name)
_DOCUMENTS = dict(_documents())
_DESCRIBED = {name: re.split("[;:.]", record.__doc__ or "")[0] for name, record in _DOCUMENTS.items()}
SCHEMAS: dict[str, str] = {
    **{
        name: f"{described[:1].lower()}{described[1:]}".replace("``", "")
        for name, described in _DESCRIBED.items()
    },
    **{name: described for name, (described, _) in _OF_LINES.items()},
}
SCHEMAS = dict(sorted(SCHEMAS.items()))
"""What each schema describes, by the name of the schema."""


def make_schema(name: str) -> dict[str, Any]:
    """Return a schema named in `SCHEMAS`, made from the records that it describes."""
    if name in _DOCUMENTS:
        return schema_of_document(_DOCUMENTS[name], f"pymllm {name}")
    module, _, function = _OF_LINES[name][1].partition(":")
    schema: dict[str, Any] = getattr(importlib.import_module(module), function)()
    return schema


_WIDTH = max(map(len, SCHEMAS))
_LIST = "\n".join(f"{name:<{_WIDTH}} {described}" for name, described in SCHEMAS.items())


@click.command(
    "schema",
    short_help="Print a JSON schema.",
    help=f"Print a JSON schema: of a document that --json prints, or of a file that a command writes."
    f"\n\n\b\n{_LIST}",
)
@click.argument("name", metavar="NAME", type=click.Choice(tuple(SCHEMAS)))
def schema_command(name: str) -> None:
    """Print a schema."""
    say(json.dumps(make_schema(name), indent=2))
