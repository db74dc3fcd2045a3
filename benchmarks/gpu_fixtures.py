"""The fixtures that GPU benchmarks share: results are collected over a run, written and shown at its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch

    from benchmarks.gpu_results import GpuResults
    from tests.stress.card import Card

__all__ = ["all_results", "card", "gpu_results", "pytest_addoption", "pytest_terminal_summary"]

_documents: pytest.StashKey[list[dict[str, Any]]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu benchmarks", "benchmarks/bench_gpu_*.py of pymllm")
    group.addoption(
        "--gpu-results",
        metavar="FOLDER",
        help="write what was measured on a GPU to the file of that device in FOLDER, and show it at the end",
    )
    group.addoption(
        "--gpu-store",
        metavar="FOLDER",
        help="keep it as a run of the store FOLDER, too, so that pymllm report follows it over time",
    )


@pytest.fixture
def card(kv_device: torch.device) -> Card:
    from tests.stress.card import Card

    return Card(kv_device)


@pytest.fixture(scope="session")
def all_results(pytestconfig: pytest.Config) -> Iterator[dict[str, GpuResults]]:
    results: dict[str, GpuResults] = {}
    yield results
    pytestconfig.stash[_documents] = [each.end() for each in results.values()]


@pytest.fixture
def gpu_results(card: Card, all_results: dict[str, GpuResults]) -> GpuResults:
    """The results of this run on this device."""
    from benchmarks.gpu_results import GpuResults

    if card.device.type not in all_results:
        all_results[card.device.type] = GpuResults(card)
    return all_results[card.device.type]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    folder, store = config.getoption("--gpu-results"), config.getoption("--gpu-store")
    is_asked = folder is not None or store is not None
    for document in config.stash.get(_documents, []) if is_asked else []:
        from benchmarks.gpu_results import result_lines

        terminalreporter.section("GPU benchmarks")
        for line in result_lines(document):
            terminalreporter.write_line(line)
        if document["machine"]["cuda"] is None:
            terminalreporter.write_line("a rehearsal on the CPU, which is not written")
        else:
            for path in _write(document, config.invocation_params, folder, store):
                terminalreporter.write_line(f"written to {path}")


def _write(
    document: dict[str, Any], typed: pytest.Config.InvocationParams, folder: str | None, store: str | None
) -> Iterator[Path]:
    """Write what was found to the file of its device and into a store, whichever was asked for."""
    from benchmarks.gpu_results import write_results
    from benchmarks.run_store import keep_document

    if folder is not None:
        yield write_results(document, Path(typed.dir, folder))
    if store is not None:
        machine = document["machine"]
        versions = {name: machine[name] for name in ("python", "torch", "triton")}
        yield keep_document(Path(typed.dir, store), document, versions, ["pytest", *map(str, typed.args)])
