"""Machines and runs."""

from __future__ import annotations

from dataclasses import replace

from pymllm.report.loading import LoadedRuns, Skipped
from pymllm.report.machines_section import BRINGS, machine_name, make_machines_section, make_runs_section
from pymllm.report.records import make_machine
from tests.unit.report import samples
from tests.unit.report.looking import tables, texts
from tests.unit.report.test_trends import OTHER


def test_a_machine_has_a_short_name() -> None:
    """Its own, or its processor's; with the GPU that it is about."""
    assert machine_name(samples.MACHINE) == f"rack 3, Some GPU ({samples.MACHINE.fingerprint})"
    assert machine_name(OTHER) == f"Another Processor ({OTHER.fingerprint})"
    assert machine_name(None) == "machine not recorded"


def test_machines_are_listed_with_their_runs() -> None:
    """Once each, with as much as any run tells of it."""
    vague = replace(samples.MACHINE, memory=None)
    blind = make_machine("P", 1, None, "Linux x86_64", gpu_reason="no NVML")
    runs = [samples.run(machine=it) for it in (vague, samples.MACHINE, OTHER, blind, None)]
    section = make_machines_section(runs)
    rows = tables(section)["Machines"]
    assert rows[0] == [
        f"rack 3 ({samples.MACHINE.fingerprint})", "Some Processor", "8", "32 GiB", "Linux x86_64",
        "Some GPU (80 GiB, driver 580.1)", "2",
    ]  # fmt: skip
    assert [row[5] for row in rows[1:]] == ["none", "none seen: no NVML"]


def test_what_doctor_saw_is_listed() -> None:
    """With the reason why NVML was not there, and no package that is not installed."""
    seen = samples.doctor() | {"nvml_reason": None, "nvml": "13", "nvml_devices": []}
    section = make_machines_section([samples.run(samples.doctor(), seen, machine=None)])
    first, second = tables(section)["What pymllm doctor saw"]
    assert first == ["Linux-6.18", "CPython 3.11.7", "2.13.0, CUDA none", "unknown: no NVML", "torch 2.13.0"]
    assert second[3] == "0 devices"


def test_without_machines_there_is_no_section() -> None:
    """It would be empty."""
    assert make_machines_section([samples.run(samples.verify(), machine=None)]) is None


def test_every_run_and_every_file_that_is_none_is_listed() -> None:
    """With what was left out of it."""
    runs = (
        samples.run(commit="ab" * 20, modified=True, pymllm="0.1.0", unread=("a smell",)),
        samples.run(machine=None, time_is_of_file=True),
    )
    loaded = LoadedRuns(runs, (Skipped("x.json", "not JSON"),), 2)
    section = make_runs_section(loaded, {"laws"})
    found = tables(section)
    here = machine_name(samples.MACHINE)
    told = ["verify", "2026-11-21 15:03:11", here, "0.1.0", "abababababab, modified", "a smell"]
    assert found["Runs"][0][1:] == told
    assert found["Runs"][1][2:] == [
        "~ 2026-11-21 15:03:11", "machine not recorded", "not recorded", "not recorded", "nothing"
    ]  # fmt: skip
    assert found["Files that could not be read"] == [["x.json", "not JSON"]]
    assert texts(section) == ["2 files were copies of others and count once."]
    assert ["soak", "pymllm soak --store FOLDER"] in found["Not in this report"]
    assert not any(row[0].startswith("laws") for row in found["Not in this report"])


def test_a_report_that_has_everything_misses_nothing() -> None:
    """No empty table."""
    section = make_runs_section(LoadedRuns((samples.run(),)), set(BRINGS))
    assert list(tables(section)) == ["Runs"]
