"""A real server that `peers/servers/install.py` has installed, and a probe of it, as a user types it."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pymllm.cli import main


def installed(variable: str, word: str) -> Path:
    """Return the folder that a variable names; skip the test where it names none."""
    folder = os.environ.get(variable)
    if folder is None:
        pytest.skip(f"{variable} names no folder of peers/servers/install.py; tox -e {word} makes one")
    return Path(folder)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return int(it.getsockname()[1])


def probed(url: str, output: Path, *words: object) -> dict[str, Any]:
    """Probe, and return the document; what was asked and answered is kept in a folder."""
    typed = ["probe", url, "--json", "--progress", "off", "--output", output, *words]
    result = CliRunner().invoke(main, [*map(str, typed)], catch_exceptions=False)
    assert result.exit_code in (0, 1, 3), result.output
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["failure"] is None, document["failure"]
    return document


def broken(document: dict[str, Any]) -> list[str]:
    """Return the laws that do not hold, though they apply: broken ones, and those that nothing tested."""
    return [law["id"] for law in document["laws"] if law["verdict"] in ("violated", "unknown")]


def requests_in(program: list[str]) -> int:
    """Return how many requests a smallest program makes, without those that are asked again cold."""
    return sum(" tokens" in line for line in program)
