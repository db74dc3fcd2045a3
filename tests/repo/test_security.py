"""The promises of SECURITY.md about our source: nothing that is read is unpickled or run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "pymllm"

UNSAFE = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve", "yaml"}
"""Modules that read what may run code."""
RUNS = {"eval", "exec", "torch.load", "numpy.load", "np.load", "os.system"}
BY_NAME = {"__import__", "importlib.import_module", "import_module"}

# What is imported by its name is named by us, by an entry point or on the command line.
IMPORTERS = (
    *("adapters/malformed.py", "adapters/registry.py", "cli/schema.py", "faults/table.py"),
    *("instrument/gpu_smoke.py", "instrument/machine_facts.py", "machines/registry.py"),
    *("oracle/judge.py", "work/spread/engines.py", "traces/text.py", "workloads/engine_pools.py"),
)
ALLOWED = {
    "work/workers.py": {"pickle"},  # tasks and answers between our own processes
    "faults/plant.py": {"exec", "importlib.import_module"},  # edits of our own tables
    **{place: {"importlib.import_module"} for place in IMPORTERS},
    "cli/__init__.py": {"import_module"},
}


def uses_of(text: str) -> Iterator[str]:
    """Yield what a module imports or calls of all these."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from UNSAFE & {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            yield from UNSAFE & {(node.module or "").partition(".")[0]}
        elif isinstance(node, ast.Call):
            yield from (RUNS | BY_NAME) & {ast.unparse(node.func)}


def test_no_module_unpickles_or_runs_what_it_reads() -> None:
    """A new place where data become code, or a name a module, is thought over, and written down here."""
    found = {
        path.relative_to(SOURCE).as_posix(): {*uses_of(path.read_text("utf-8"))}
        for path in SOURCE.rglob("*.py")
    }
    assert {place: uses for place, uses in found.items() if uses} == ALLOWED


def test_what_would_run_code_is_noticed() -> None:
    """The test above can fail, for each form."""
    text = "import pickle, json\nfrom yaml import load\neval(x), torch.load(x), import_module(x), fine(x)\n"
    assert {*uses_of(text)} == {"pickle", "yaml", "eval", "torch.load", "import_module"}


def test_each_test_that_the_page_names_is_there() -> None:
    """A promise without its test is none."""
    named = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "SECURITY.md").read_text("utf-8"))
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).is_file()] == []
