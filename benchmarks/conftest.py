"""The common set-up of benchmarks, and the facts of a stored run: the machine and the hash of its code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.code_hash import code_of
from benchmarks.gpu_fixtures import all_results, card, gpu_results, pytest_addoption, pytest_terminal_summary
from tests.source_tree import pytest_make_collect_report

__all__ = [
    "all_results",
    "card",
    "gpu_results",
    "percentiles",
    "pytest_addoption",
    "pytest_make_collect_report",
    "pytest_terminal_summary",
]


@pytest.fixture(autouse=True)
def percentiles(request: pytest.FixtureRequest) -> Iterator[None]:
    """Note the percentiles of every timed benchmark; what its file notes itself stands."""
    yield
    benchmark = getattr(request.node, "funcargs", {}).get("benchmark")
    if benchmark is not None:
        from benchmarks.notes import note  # loads what a GPU's source tree lacks

        note(benchmark, **benchmark.extra_info)


# The benchmarks of a GPU need no pytest-benchmark, and pytest refuses hooks that nobody calls.
@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Add GPU, driver, clocks and torch; leave out what differs between two runs on one machine."""
    from benchmarks.machine import machine_facts  # loads what a GPU's source tree lacks

    for volatile in ("hz_actual", "hz_actual_friendly"):
        machine_info.get("cpu", {}).pop(volatile, None)
    machine_info.update(machine_facts())


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Write down the code of each benchmark."""
    for benchmark in output_json["benchmarks"]:
        benchmark["extra_info"]["code"] = code_of(file_of(config, benchmark["fullname"]))


@pytest.hookimpl(optionalhook=True)
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
