"""``pymllm doctor`` from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from click.testing import CliRunner
from jsonschema import Draft202012Validator

from pymllm.cli import main
from pymllm.cli.schema import make_schema
from tests.fake_nvml.machine import GIB, FakeNvml


def test_the_document_keeps_to_its_schema() -> None:
    """Whatever this machine has."""
    result = CliRunner().invoke(main, ["doctor", "--json"], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    Draft202012Validator(make_schema("doctor")).validate(json.loads(result.stdout))


def test_the_table_is_for_people() -> None:
    """With progress asked for, that goes to standard error."""
    result = CliRunner().invoke(main, ["doctor", "--progress", "on"], catch_exceptions=False)
    assert result.exit_code == 0
    for word in ("pymllm", "Python", "torch", "NVML", "triton"):
        assert f"\n{word} " in f"\n{result.stdout}"
    assert "loading torch" in result.stderr
    assert "loading torch" not in result.stdout


def test_each_counter_of_a_device_is_read(fake_nvml: FakeNvml) -> None:
    """On a machine with a GPU: its memory, and why what cannot be read cannot."""
    command = [sys.executable, "-W", "error", "-m", "pymllm", "doctor"]
    state: dict[str, object] = {
        "used": GIB,
        "total": 8 * GIB,
        "reserved": GIB // 2,
        "processes": f"{os.getpid()}:5",
    }
    state["fail.nvmlDeviceGetUtilizationRates"] = 3
    done = fake_nvml.run(command, fake_nvml.built(), {}, **state)
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        "Fake GPU, GPU-00000000-fake, driver 599.01, 8.0 GiB",
        "in use (without reserved) 1.0 GiB",
    ):
        assert line in " ".join(done.stdout.split())
    assert "utilization: nvmlDeviceGetUtilizationRates: Not Supported" in done.stdout


def test_a_closed_output_is_status_2() -> None:
    """X1: as of every command, before anything is looked at."""
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m pymllm doctor >&-"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
