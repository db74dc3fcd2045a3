"""The contents of the wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel with the hatchling that is installed here, so that no network is needed."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
        timeout=120,
    )
    (path,) = folder.glob("pymllm-*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_carries_every_module_types_and_licence(wheel: zipfile.ZipFile) -> None:
    """A user of the wheel gets modules, templates, py.typed and licence, and no tests."""
    files = set(wheel.namelist())
    source = ROOT / "src"
    assert {str(path.relative_to(source)) for path in source.rglob("*.py")} <= files
    assert "pymllm/py.typed" in files
    assert not {Path(name).suffix for name in files} & {".cpp", ".h", ".go"}
    templates = source / "pymllm" / "report" / "templates"
    assert {str(path.relative_to(source)) for path in templates.iterdir()} <= files
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in files)
    assert not any(name.startswith(("tests/", "benchmarks/", "peers/", "pymllm_peers/")) for name in files)


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    """Version, licence and command come from the tree."""
    (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    text = wheel.read(metadata).decode()
    source = (ROOT / "src" / "pymllm" / "__init__.py").read_text(encoding="utf-8")
    version = source.split('__version__ = "')[1].split('"')[0]
    assert f"\nVersion: {version}\n" in text
    assert "\nLicense-Expression: Apache-2.0\n" in text
    # What pip would replace or fetch by the gigabyte comes only to whoever asks for it.
    heavy = re.findall(r"^Requires-Dist: (?:torch|numpy)\b(.*)$", text, re.MULTILINE)
    assert len(heavy) == 2
    assert all("; extra == 'torch'" in line for line in heavy)
    (scripts,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "pymllm = pymllm.__main__:run" in wheel.read(scripts).decode()
    assert "[pytest11]\npymllm.pytest_plugin = pymllm.pytest_plugin\n" in wheel.read(scripts).decode()
