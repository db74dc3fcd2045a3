"""Keeping the results of benchmarks as a run of a store, so that ``pymllm report`` follows them over time."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pymllm.report.records import Document
from pymllm.report.store import make_header, write_run

__all__ = ["keep_document"]


def keep_document(
    folder: Path, document: Mapping[str, Any], versions: Mapping[str, str | None], words: Sequence[str]
) -> Path:
    """Write a run with a document, whose schema is its kind.

    Parameters
    ----------
    folder : Path
        The store.
    document : mapping
        As its own file has it.
    versions : mapping
        Of packages that took part; ``None`` for those that are not there.
    words : sequence of str
        That were typed.

    Returns
    -------
    Path
        Of the run.
    """
    header = make_header(
        str(document["schema"]).removeprefix("pymllm."),
        command=[shlex.quote(word) for word in words],
        versions={name: told for name, told in versions.items() if told},
    )
    plain = json.loads(json.dumps(document))  # tuples are lists there
    return write_run(folder, header, [Document(plain)])
