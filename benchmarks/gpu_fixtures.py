"""What GPU benchmarks share: results are collected over a run, written and shown at its end."""

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
    folder = config.getoption("--gpu-results")
    for document in config.stash.get(_documents, []) if folder is not None else []:
        from benchmarks.gpu_results import result_lines, write_results

        terminalreporter.section("GPU benchmarks")
        for line in result_lines(document):
            terminalreporter.write_line(line)
        if document["machine"]["cuda"] is None:
            terminalreporter.write_line("a rehearsal on the CPU, which is not written")
        else:
            path = write_results(document, Path(config.invocation_params.dir, folder))
            terminalreporter.write_line(f"written to {path}")
