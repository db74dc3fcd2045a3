"""What benchmarks share: stored runs say machine and code; GPU results are shown and written at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.code_hash import code_of
from tests.source_tree import pytest_make_collect_report

if TYPE_CHECKING:
    import torch

    from benchmarks.gpu_results import GpuResults
    from tests.stress.card import Card

__all__ = ["pytest_make_collect_report"]

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
def _all_results(pytestconfig: pytest.Config) -> Iterator[dict[str, GpuResults]]:
    results: dict[str, GpuResults] = {}
    yield results
    pytestconfig.stash[_documents] = [each.end() for each in results.values()]


@pytest.fixture
def gpu_results(card: Card, _all_results: dict[str, GpuResults]) -> GpuResults:
    """The results of this run on this device."""
    from benchmarks.gpu_results import GpuResults

    if card.device.type not in _all_results:
        _all_results[card.device.type] = GpuResults(card)
    return _all_results[card.device.type]


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


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Add GPU, driver, clocks and torch; leave out what differs between two runs on one machine."""
    from benchmarks.machine import machine_facts

    for volatile in ("hz_actual", "hz_actual_friendly"):
        machine_info.get("cpu", {}).pop(volatile, None)
    machine_info.update(machine_facts())


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Write down the code of each benchmark."""
    for benchmark in output_json["benchmarks"]:
        benchmark["extra_info"]["code"] = code_of(file_of(config, benchmark["fullname"]))


def pytest_benchmark_compare_machine_info(
    config: pytest.Config, benchmarksession: Any, compared_benchmark: dict[str, Any]
) -> None:
    """Leave out of a stored run what was measured by other code: an edited benchmark has no past."""
    stored = compared_benchmark["benchmarks"]
    same = [one for one in stored if is_unchanged(config, one)]
    if len(same) < len(stored):
        benchmarksession.logger.warning(
            f"{len(stored) - len(same)} of {len(stored)} stored benchmarks were edited since; not compared."
        )
    compared_benchmark["benchmarks"] = same


def is_unchanged(config: pytest.Config, stored: dict[str, Any]) -> bool:
    """Whether a stored benchmark was measured by the code that is here."""
    path = file_of(config, stored["fullname"])
    return path.is_file() and stored["extra_info"].get("code") == code_of(path)


def file_of(config: pytest.Config, fullname: str) -> Path:
    """Return the file of a benchmark."""
    return config.rootpath / fullname.partition("::")[0]
