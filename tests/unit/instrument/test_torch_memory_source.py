"""Torch's allocator is asked only where a process already uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pymllm.instrument.torch_memory import TorchAllocator


def test_torch_is_not_loaded_to_be_asked() -> None:
    """A process without torch has no memory there, and stays without."""
    code = """if True:
        import sys
        from pymllm.instrument.torch_memory import TorchAllocator
        print(TorchAllocator().why_not(), "torch" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "torch is not loaded in this process False\n"


def test_cuda_is_not_initialised_to_be_asked() -> None:
    """A torch without CUDA, or that has not used it, has a reason."""
    import torch

    if torch.cuda.is_initialized():
        pytest.skip("CUDA is in use in this process")
    reason = str(TorchAllocator("cuda:0").why_not())
    assert "built without CUDA" in reason or reason == "CUDA is not initialised in this process"
    assert not torch.cuda.is_initialized()


@pytest.mark.gpu
def test_torch_answers_where_cuda_is_in_use(tmp_path: Path) -> None:
    """Each question reaches torch: counters, peak, reserve, history."""
    import torch

    source = TorchAllocator("cuda")
    held = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    assert source.why_not() is None
    assert source.identity == torch.cuda.current_device()
    assert source.backend() in ("native", "cudaMallocAsync")
    assert source.stats()["allocated_bytes.all.current"] >= held.nbytes
    source.reset_peak()
    assert source.stats()["allocated_bytes.all.peak"] == source.stats()["allocated_bytes.all.current"]
    torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    reserved = source.stats()["reserved_bytes.all.current"]
    source.settle()
    source.release_cache()
    assert source.stats()["reserved_bytes.all.current"] < reserved
    source.record_history(100)
    torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    source.dump(tmp_path / "snapshot.pickle")
    source.record_history(None)
    assert (tmp_path / "snapshot.pickle").stat().st_size > 0
