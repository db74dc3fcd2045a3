"""The step facts of .ci/gpu names the parts that a machine lacks."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FACTS = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "gpu_facts.py"))


def a_torch(cuda: str | None = "13.0", *, sees: bool = True) -> Any:
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(is_available=lambda: sees),
    )


@pytest.fixture(autouse=True)
def whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that has all: a compiler, Python.h, Triton, and no variable that hides a GPU."""
    (tmp_path / "gcc").write_text("#!/bin/sh\n", encoding="utf-8")
    (tmp_path / "gcc").chmod(0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setitem(FACTS["what_is_missing"].__globals__, "find_spec", lambda name: object())
    return tmp_path


def missing(torch: Any, driver: str | None = "580.65.06") -> list[str]:
    return list(FACTS["what_is_missing"](torch, driver))


def test_a_whole_machine_lacks_nothing() -> None:
    """The looks below can pass; a driver with NVIDIA's package of forward compatibility may be older."""
    assert missing(a_torch()) == []
    assert missing(a_torch("12.8"), "525.60.13") == []
    assert missing(a_torch(), "535.183.01") == []


@pytest.mark.parametrize(
    ("torch", "driver", "told"),
    [
        (a_torch(None), None, "torch 2.13.0 is built without CUDA; pytorch.org/get-started has builds"),
        (a_torch(sees=False), None, "nvidia-smi does not answer: there is no driver"),
        (
            a_torch(),
            None,
            "torch sees a GPU, but nvidia-smi does not answer: a container needs NVIDIA_DRIVER",
        ),
        (
            a_torch(sees=False),
            "570.86.10",
            "driver 570.86.10 is too old for CUDA 13.0, which needs 580 or later",
        ),
        (
            a_torch("12.8", sees=False),
            "470.1",
            "driver 470.1 is too old for CUDA 12.8, which needs 525 or later",
        ),
        (a_torch(sees=False), "580.65.06", "torch sees no GPU (CUDA_VISIBLE_DEVICES is not set)"),
    ],
)
def test_a_machine_without_a_gpu_is_told_why(torch: Any, driver: str | None, told: str) -> None:
    """A13: the driver, the wheel, or what hides the GPU."""
    (line,) = missing(torch, driver)
    assert line.startswith(told)


def test_what_triton_compiles_with_is_looked_for(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A13: its launcher is C, and includes Python.h; CC names another compiler."""
    (whole / "Python.h").unlink()
    (whole / "gcc").rename(whole / "cc-13")
    monkeypatch.setitem(FACTS["what_is_missing"].__globals__, "find_spec", lambda name: None)
    triton, compiler, header = missing(a_torch())
    assert triton == "there is no Triton; torch's wheels for CUDA bring it"
    assert compiler.startswith("there is no C compiler")
    assert compiler.endswith("install gcc, or name one in CC")
    assert header == f"{whole / 'Python.h'} is missing, which those launchers include: " + (
        "install python3-dev, or python3-devel"
    )
    monkeypatch.setenv("CC", "cc-13")
    assert len(missing(a_torch())) == 2


def test_the_driver_is_asked_for_its_version(whole: Path) -> None:
    """A13: with no driver, nothing is told; one that fails is as none."""
    assert FACTS["driver_version"]() is None
    (whole / "nvidia-smi").write_text("#!/bin/sh\necho 580.65.06\necho 580.65.06\n", encoding="utf-8")
    (whole / "nvidia-smi").chmod(0o755)
    assert FACTS["driver_version"]() == "580.65.06"
    (whole / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
    assert FACTS["driver_version"]() is None
