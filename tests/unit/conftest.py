"""Fixtures that unit tests of several rooms share."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fake_nvml.machine import ROOT, FakeNvml

if TYPE_CHECKING:
    from tests.far_device import Apart
    from tests.unit.mem_cache.plain_kernel import PlainKernel

pytest.register_assert_rewrite("tests.unit.refusals")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of small adapters, as ``--adapter`` names it: ``f"{tiny}:TinyRows"``."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return "tiny_adapters"


@pytest.fixture
def work_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commands do in this process the work of other processes, so that a test can change it."""
    from pymllm.work.workers import Workers

    begin = Workers.__init__
    monkeypatch.setattr(Workers, "__init__", lambda self, jobs, seconds=0.0: begin(self, 0, seconds))


@pytest.fixture
def tiny_program() -> Callable[..., str]:
    """Give the command of a small program that speaks the process protocol, with the ways to do it wrong."""

    def command(*arguments: str) -> str:
        # Without site-packages an interpreter starts in half the time.
        program = [sys.executable, "-S", "-E", str(Path(__file__).parent / "tiny_program.py")]
        return shlex.join([*program, *arguments])

    return command


@pytest.fixture
def sees_fake_gpus(fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let programs that a test starts meet the machine of `FakeNvml`, and no other test's locks."""
    environment = fake_nvml.environment(fake_nvml.built())
    for name in ("FAKE_NVML_STATE", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PYMLLM_GPU_LOCKS", str(tmp_path))
    paths = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.fixture(params=["far", pytest.param("cuda", marks=pytest.mark.gpu)])
def apart(request: pytest.FixtureRequest) -> Iterator[Apart]:
    """A device that the host has to wait for, without a GPU and with one, and how to count its waits."""
    import torch

    from tests.far_device import DEVICE, far_device, synchronisations

    if request.param == "cuda":
        yield torch.device("cuda"), synchronisations
        return
    with far_device() as all_waits:

        @contextmanager
        def count() -> Iterator[list[str]]:
            all_waits.clear()
            waits: list[str] = []
            yield waits
            waits += all_waits

        yield DEVICE, count


@pytest.fixture
def plain_kernel(monkeypatch: pytest.MonkeyPatch) -> PlainKernel:
    """Lets what is built with ``fused=True`` on the CPU launch a kernel in plain Python, which counts."""
    from pymllm.mem_cache.kernels import fused_rows
    from tests.unit.mem_cache.plain_kernel import PlainKernel

    kernel = PlainKernel(fused_rows._compiled)
    obstacle = fused_rows._obstacle
    monkeypatch.setattr(fused_rows, "_compiled", kernel.compile)
    monkeypatch.setattr(
        fused_rows, "_obstacle", lambda device: None if device.type == "cpu" else obstacle(device)
    )
    return kernel


@pytest.fixture(params=[False, True], ids=["torch", "one-launch"])
def on_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test twice: with what torch does on the CPU, and with the launches of a GPU."""
    if request.param:
        from pymllm.core.inference.contexts import slot_states
        from pymllm.mem_cache.kernels import fused_rows
        from pymllm.mem_cache.pools import gdn_pool, kv_pool

        request.getfixturevalue("plain_kernel")

        def make_fused(fused: bool | None, device: Any, build: Callable[[], Any]) -> Any:
            wanted = True if fused is None and device.type == "cpu" else fused
            return fused_rows.make_fused(wanted, device, build)

        for room in (kv_pool, gdn_pool, slot_states):
            monkeypatch.setattr(room, "make_fused", make_fused)


@pytest.fixture
def other_defaults() -> Iterator[None]:
    """A device without memory stands in for a GPU that others have made torch's default one."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(before)


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Install a package that brings adapters: its module's name and source, in which ``ADAPTERS`` stands."""
    from pymllm.adapters import plugins

    def install(name: str, source: str) -> None:
        names.append(name)
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        facts = tmp_path / f"{name}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
        (facts / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = {name}:ADAPTERS\n", "utf-8")
        plugins._read_all.cache_clear()

    names: list[str] = []
    monkeypatch.syspath_prepend(tmp_path)
    yield install
    plugins._read_all.cache_clear()
    for name in names:
        sys.modules.pop(name, None)
