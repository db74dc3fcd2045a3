"""Print docs/faults.md anew and keep the measured numbers: ``python docs/builder/faults_page.py``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))  # also where the package is not installed

from pymllm.cli.search.faults_page import print_anew  # noqa: E402

if __name__ == "__main__":
    page = ROOT / "docs" / "faults.md"
    page.write_text(print_anew(page.read_text(encoding="utf-8")), encoding="utf-8")
