"""The GPU tests run from the source tree, on a machine that has little else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bare_packages import needed_by, show_packages
from tests.source_tree import BEYOND

ROOT = Path(__file__).parents[2]
# What machines with a GPU have been seen to have; whatever these need comes with them.
THERE = (
    "torch",
    "numpy",
    "pytest",
    "pytest-benchmark",
    "pytest-xdist",
    "hypothesis",
    "psutil",
    "msgspec",
    "nvidia-ml-py",
)
SCRIPT = (ROOT / ".ci" / "gpu").read_text(encoding="utf-8")
(_pattern,) = re.findall("^of_a_gpu_test='(.*)'$", SCRIPT, re.MULTILINE)
OF_A_GPU_TEST = re.compile(_pattern, re.MULTILINE)
FOLDERS = ("tests/stress", "tests/unit", "tests/properties", "benchmarks")
FILES = [
    str(path.relative_to(ROOT))
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    # The plugin's own tests write such tests, and have none; what tests share has none, either.
    if path.name not in ("test_pytest_plugin.py", "conftest.py")
    and OF_A_GPU_TEST.search(path.read_text(encoding="utf-8"))
]


@pytest.fixture(scope="module")
def bare_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that shows these packages and no other."""
    folder = tmp_path_factory.mktemp("packages")
    names: set[str] = set()
    for name in THERE:
        needed_by(name, names, BEYOND)
    show_packages(names, folder)
    return folder


def run_bare(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the source tree and these packages; without ``site``, it finds no others."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))
    }
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": f"{ROOT / 'src'}:{packages}", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def collect_gpu_tests(packages: Path, *places: str) -> str:
    """Return pytest's list of the GPU tests in files and folders."""
    options = ("-p", "pymllm.pytest_plugin", "-p", "no:cacheprovider", "-m", "gpu", "--collect-only", "-q")
    done = run_bare(packages, "-m", "pytest", *options, *places)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr
    return done.stdout


def test_files_with_gpu_tests_need_no_other_package(bare_packages: Path) -> None:
    """Each is read as a whole, and has such a test."""
    output = collect_gpu_tests(bare_packages, *FILES)
    assert "tests/stress/test_launches_cuda.py" in FILES
    assert [file for file in FILES if f"{file}::" not in output] == []
    assert "SKIPPED" not in output


@pytest.mark.slow
def test_whole_folders_are_read_without_the_other_packages(bare_packages: Path) -> None:
    """A file that needs more is skipped with the reason, not an error that stops the run."""
    output = collect_gpu_tests(bare_packages, *FOLDERS)
    skipped = re.findall(r"^SKIPPED \[1\] ([\w/]+\.py):0: needs (\w+), which", output, re.MULTILINE)
    assert ("tests/unit/adapters/process/test_messages.py", "jsonschema") in skipped
    assert not {file for file, _ in skipped} & set(FILES)
    # The script collects these files alone, so that none may have a GPU test and not look like it.
    assert {line.partition("::")[0] for line in output.splitlines() if "::" in line} == set(FILES)


def test_the_script_collects_the_files_with_gpu_tests() -> None:
    """A21: of 14,000 tests, so that collecting takes seconds, and no file that has one is forgotten."""
    folders = ["tests/unit", "tests/properties"]
    call = SCRIPT[SCRIPT.index("of_a_gpu_test=") : SCRIPT.index("facts() {")] + 'files_with_gpu_tests "$@"'
    done = subprocess.run(
        ["bash", "-c", call, "bash", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.split()) == sorted(it for it in FILES if it.startswith(tuple(folders)))


def test_nothing_else_is_found_there(bare_packages: Path) -> None:
    """The looks above can fail: the packages that it does without are really missing."""
    code = "import importlib.util as u, sys; print([name for name in sys.argv[1:] if u.find_spec(name)])"
    done = run_bare(bare_packages, "-c", code, "torch", "pymllm", "pynvml", *BEYOND)
    assert done.stdout == "['torch', 'pymllm', 'pynvml']\n", done.stderr
