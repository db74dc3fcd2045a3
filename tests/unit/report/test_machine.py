"""Which machine, commit and code a run is of."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pymllm.instrument.reading import Unreadable
from pymllm.report import machine
from pymllm.report.machine import find_commit, find_processor, hash_of_code, look_at_this_machine
from pymllm.report.records import Gpu


class Library:
    """NVML with answers from a table."""

    answers: ClassVar[dict[str, Any]] = {}
    closed = 0

    def open(self) -> None:
        self.call("open")

    def close(self) -> None:
        Library.closed += 1

    def call(self, name: str, *arguments: Any) -> Any:
        answer = self.answers.get(name)
        if answer is None:
            raise Unreadable(f"{name}: no")
        return answer


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> type[Library]:
    memory = type("Memory", (), {"total": 80 << 30})()
    Library.answers = {
        "open": True,
        "nvmlSystemGetDriverVersion": "580.1",
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetHandleByIndex": object(),
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetName": "Some GPU",
    }
    Library.closed = 0
    monkeypatch.setattr(machine, "NvmlLibrary", Library)
    return Library


def test_this_machine_is_the_same_machine_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And another one under another name."""
    monkeypatch.delenv("PYMLLM_MACHINE", raising=False)
    one = look_at_this_machine()
    assert one == look_at_this_machine()
    assert one.cores == len(os.sched_getaffinity(0))
    assert one.memory is not None
    assert one.memory > 1 << 28
    assert one.system.startswith(platform.system())
    assert one.processor
    monkeypatch.setenv("PYMLLM_MACHINE", "rack 3")
    named = look_at_this_machine()
    assert named.name == "rack 3"
    assert named.fingerprint != one.fingerprint


def test_gpus_are_those_of_nvml(library: type[Library]) -> None:
    """With driver and memory."""
    found = look_at_this_machine()
    assert found.gpus == (Gpu("Some GPU", 80 << 30, "580.1"),) * 2
    assert found.gpu_reason is None
    assert library.closed == 1


@pytest.mark.parametrize("missing", ["open", "nvmlDeviceGetName", "nvmlDeviceGetCount"])
def test_where_nvml_cannot_be_asked_the_machine_says_why(library: type[Library], missing: str) -> None:
    """No GPU was seen is not: there is none."""
    del library.answers[missing]
    found = look_at_this_machine()
    assert (found.gpus, found.gpu_reason) == ((), f"{missing}: no")


def test_memory_that_a_gpu_does_not_tell_is_unknown(library: type[Library]) -> None:
    """Not zero."""
    del library.answers["nvmlDeviceGetMemoryInfo"]
    assert look_at_this_machine().gpus[0].memory is None


def test_a_system_without_figures_is_known_by_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one without /proc/cpuinfo."""

    def fail(*arguments: object, **options: object) -> Any:
        raise OSError("no such file")

    monkeypatch.setattr(os, "sysconf", fail)
    monkeypatch.setattr(Path, "read_text", fail)
    assert find_processor()
    assert look_at_this_machine().memory is None


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *names, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_is_that_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said where tracked files differ from it; files that git does not know do not count."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("PYMLLM_COMMIT", raising=False)
    assert find_commit(tmp_path) == (None, False)
    git(tmp_path, "init", "-q")
    assert find_commit(tmp_path) == (None, False)  # no commit yet
    (tmp_path / "a").write_text("1", encoding="utf-8")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "one")
    (tmp_path / "new").write_text("1", encoding="utf-8")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert find_commit(tmp_path) == (commit, False)
    (tmp_path / "a").write_text("2", encoding="utf-8")
    assert find_commit(tmp_path) == (commit, True)
    monkeypatch.chdir(tmp_path)
    assert find_commit() == (commit, True)


def test_settings_of_a_folder_start_no_program(tmp_path: Path) -> None:
    """It may have come as an archive; the commit of the working folder is asked for all the same."""
    (tmp_path / "a").write_text("1", encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "one")
    hook = tmp_path / ".git" / "hooks" / "run"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n", encoding="utf-8")
    hook.chmod(0o755)
    git(tmp_path, "config", "core.fsmonitor", str(hook))
    assert find_commit(tmp_path)[0] is not None
    assert not (tmp_path / "ran").exists()


def test_without_git_there_is_no_commit_but_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree that was copied to another machine has no history."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PYMLLM_COMMIT", raising=False)
    assert find_commit() == (None, False)
    monkeypatch.setenv("PYMLLM_COMMIT", "ab" * 20)
    assert find_commit() == ("ab" * 20, False)


def test_the_hash_of_code_is_of_names_and_contents(tmp_path: Path) -> None:
    """Neither of the order nor of the folder."""
    one, two = tmp_path / "a.py", tmp_path / "b.py"
    one.write_text("x = 1", encoding="utf-8")
    two.write_text("y = 1", encoding="utf-8")
    before = hash_of_code([one, two])
    assert hash_of_code([two, one]) == before
    assert hash_of_code([one]) != before
    elsewhere = tmp_path / "deep"
    elsewhere.mkdir()
    moved = [path.rename(elsewhere / path.name) for path in (one, two)]
    assert hash_of_code(moved) == before
    moved[0].write_text("x = 2", encoding="utf-8")
    assert hash_of_code(moved) != before
