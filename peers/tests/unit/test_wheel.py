"""The contents of the distribution's wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

PEERS = Path(__file__).parents[2]


def test_the_wheel_carries_every_module_and_what_is_compiled(tmp_path: Path) -> None:
    """Adapters, sources in other languages, and the entry point by which they are found; no tests."""
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, PEERS],
        check=True,
        capture_output=True,
        timeout=120,
    )
    (path,) = tmp_path.glob("pymllm_peers-*.whl")
    wheel = zipfile.ZipFile(path)
    files = set(wheel.namelist())
    sources = {it for end in ("py", "cpp", "h", "go") for it in (PEERS / "pymllm_peers").rglob(f"*.{end}")}
    assert {path.suffix for path in sources} == {".py", ".cpp", ".h", ".go"}
    assert {str(it.relative_to(PEERS)) for it in sources} <= files
    assert not any(name.startswith(("tests/", "benchmarks/", "time_machine/")) for name in files)
    (points,) = [name for name in files if name.endswith("entry_points.txt")]
    assert "[pymllm.adapters]\npeers = pymllm_peers:ADAPTERS" in wheel.read(points).decode()
