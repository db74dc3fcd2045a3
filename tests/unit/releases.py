"""A package whose releases lie in a folder, and an adapter of it: request rows, wrong in some releases."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pymllm.history.files import Config
from tests.unit.tiny_adapters import KeepsEntries, TinyRows

KEEPS, CLEANS = "KEEPS = True\n", "KEEPS = False\n"
"""The module of a release that breaks P2 by leaving what a row had, and of one that does not."""


class ReleasedRows(KeepsEntries):
    """Rows that are cleaned as the package says that is installed."""

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        import tiny_rows  # type: ignore[import-not-found]  # of a release that a test has made

        self.package = tiny_rows

    def do_free_row(self, step: int, operation: Any) -> Any:
        rows = KeepsEntries if self.package.KEEPS else TinyRows
        return rows.do_free_row(self, step, operation)


def write_wheels(
    folder: Path, sources: Mapping[str, str], module: str = "tiny_rows", requires: Sequence[str] = ()
) -> None:
    """Write a wheel for each version, of one module with this source, and what it requires."""
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    folder.mkdir(exist_ok=True)
    for version, source in sources.items():
        facts = f"{module}-{version}.dist-info"
        with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{module}.py", source)
            wheel.writestr(
                f"{facts}/METADATA",
                f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n{needs}",
            )
            wheel.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{facts}/RECORD", "")


def take_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip know this folder alone, and no network."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
