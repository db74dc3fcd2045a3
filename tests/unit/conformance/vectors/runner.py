"""The runner of one file, as a module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

VECTORS = Path(__file__).parents[4] / "vectors"
FOLDER = VECTORS / "v1"


def _load(path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


RUNNER = _load(VECTORS / "runners" / "python" / "run_vectors.py")
