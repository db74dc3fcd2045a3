"""The pages about instruments and the plugin, and the script that makes figures of a log, are true."""

from __future__ import annotations

import argparse
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from pymllm import pytest_plugin
from pymllm.cli import main
from pymllm.instrument import openmetrics
from pymllm.instrument.gpu_memory import GpuMemory, make_line
from pymllm.pytest_plugin import settings
from tests.unit.instrument.fake_allocator import FakeAllocator

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "pytest.md"


class Options:
    """Collects the options that the plugin adds, as pytest's parser would."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.settings: set[str] = set()

    def getgroup(self, name: str, title: str) -> Options:
        assert name
        assert title
        return self

    def addoption(self, name: str, **how: object) -> None:
        argparse.ArgumentParser().add_argument(name, **{**how, "dest": "it"})  # type: ignore[arg-type]  # as pytest has them
        self.names.add(name)

    def addini(self, name: str, help: str, **how: object) -> None:
        assert help
        self.settings.add(name)


def options_of_the_plugin() -> set[str]:
    options = Options()
    pytest_plugin.pytest_addoption(options)  # type: ignore[arg-type]  # as much of a parser as it needs
    return options.names | set(settings.SWITCHES)


def settings_of_the_plugin() -> set[str]:
    options = Options()
    pytest_plugin.pytest_addoption(options)  # type: ignore[arg-type]  # as above
    return options.settings


def test_every_option_and_marker_of_the_plugin_is_on_its_page() -> None:
    """And none that there is not."""
    text = PAGE.read_text(encoding="utf-8")
    told = set(re.findall(r"--(?:gpu|require)[a-z-]+", text))
    assert told == options_of_the_plugin()
    markers = {line.split(":")[0].split("(")[0] for line in settings.MARKERS}
    assert {name for name in markers if f"`{name}" in text} == markers
    assert set(re.findall(r"`(pymllm_\w+)", text)) - markers == settings_of_the_plugin()
    for fixture in ("kv_device", "gpu_memory", "leak_check", "wait_for_gpu_memory"):
        assert hasattr(pytest_plugin, fixture)
        assert fixture in text


@pytest.mark.parametrize("page", ["pytest.md", "instruments.md"])
def test_names_of_the_packages_parts_exist(page: str) -> None:
    """Functions and commands in backticks are there."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name in re.findall(r"`([a-z]+_families)`", text):
        assert hasattr(openmetrics, name)
    for command in re.findall(r"(?:`|^)pymllm ([a-z]+)", text, flags=re.MULTILINE):
        assert command in main.commands, command


def test_the_script_makes_figures_of_a_log() -> None:
    """A value that was read becomes an entry with name, unit and value; an unread value is left out."""
    figures = runpy.run_path(str(ROOT / "examples" / "gpu_memory_figures.py"))["figures"]
    allocator = FakeAllocator()
    with GpuMemory("GPU-of-nobody", source=allocator) as memory:
        allocator.allocate(4096)
    line = make_line("test_x.py::test_y", "main", memory.summary(), None)
    assert figures([line]) == [{"name": "test_x.py::test_y: tensors", "unit": "bytes", "value": 4096}]
    assert json.loads(line)["nvml"]["used_peak"]["value"] is None


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "log.jsonl: No such file or directory"), ('{"schema": "pymllm.verify"}\n', "no log of pytest"),
     ("{\n", "no log of pytest")],
)  # fmt: skip
def test_the_script_says_what_is_wrong_with_a_log(tmp_path: Path, text: str | None, said: str) -> None:
    """One line, and a status that stops a workflow."""
    log = tmp_path / "log.jsonl"
    if text is not None:
        log.write_text(text, encoding="utf-8")
    command = [sys.executable, str(ROOT / "examples" / "gpu_memory_figures.py"), str(log)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
