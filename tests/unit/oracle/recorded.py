"""Programs of every kind that sound implementations ran, with what they did: ``programs/KIND.jsonl``."""

from __future__ import annotations

import re
from pathlib import Path

from pymllm.history.files import History, read_history

FOLDER = Path(__file__).with_name("programs")


def read_corpus(folder: Path = FOLDER) -> dict[str, History]:
    """Return the programs by name: kind, and place in its file."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        texts = re.split(r'(?m)^(?=\{"format")', path.read_text(encoding="utf-8"))[1:]
        for number, text in enumerate(texts, 1):
            name = f"{path.stem}-{number}"
            found[name] = read_history(text.splitlines(), name)
    return found
