"""What this machine has for the other steps of .ci/gpu, and what they lack: then the status is 1."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NEEDED = ("torch", "triton", "numpy", "pytest", "hypothesis", "psutil", "nvidia-ml-py", "msgspec")
ALSO = ("pytest-benchmark", "pytest-xdist", "nvidia-cuda-sanitizer-api")
# The first driver for what was built with CUDA of that number (NVIDIA, CUDA compatibility, minor versions).
LEAST_DRIVER = {"12": 525, "13": 580}


def driver_version() -> str | None:
    """Ask nvidia-smi, which needs no Python; the first GPU's driver is that of all."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.split()), None)


def compiler() -> str | None:
    """Find the compiler that Triton builds its launcher with, as it looks for it."""
    named = os.environ.get("CC")
    return shutil.which(named) if named else shutil.which("gcc") or shutil.which("clang")


def what_is_missing(torch: Any, driver: str | None) -> Iterator[str]:
    """Yield a line for each thing that another step would miss, with the way to it."""
    if torch.version.cuda is None:
        yield f"torch {torch.__version__} is built without CUDA; pytorch.org/get-started has builds with it"
        return
    least = LEAST_DRIVER.get(torch.version.cuda.split(".")[0])
    number = re.match(r"\d+", driver or "")
    if torch.cuda.is_available():
        # An older driver works, too, with NVIDIA's package of forward compatibility.
        if driver is None:
            yield (
                "torch sees a GPU, but nvidia-smi does not answer: a container needs"
                " NVIDIA_DRIVER_CAPABILITIES=compute,utility, or limits and leaks of memory are unknown"
            )
    elif driver is None:
        yield "nvidia-smi does not answer: there is no driver, or the container was started without GPUs"
    elif least is not None and number is not None and int(number[0]) < least:
        yield (
            f"driver {driver} is too old for CUDA {torch.version.cuda}, which needs {least} or later: install"
            " a newer one, or a torch for an older CUDA (pytorch.org/get-started)"
        )
    else:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        yield f"torch sees no GPU (CUDA_VISIBLE_DEVICES is {'not set' if shown is None else repr(shown)})"
    if find_spec("triton") is None:
        yield "there is no Triton; torch's wheels for CUDA bring it"
    if compiler() is None:
        yield "there is no C compiler, which Triton builds its launchers with: install gcc, or name one in CC"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        yield f"{header} is missing, which those launchers include: install python3-dev, or python3-devel"


def version_of(name: str) -> str | None:
    """Return the version of a package, ``None`` where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def main() -> int:
    """Tell all of it."""
    print("python", sys.version)
    for name in (*NEEDED, *ALSO):
        print(name, version_of(name) or "is not installed")
    # Triton comes under more than one name of a package: whether it can be imported is asked below.
    missing = [
        f"the package {name} is not installed"
        for name in NEEDED
        if name != "triton" and version_of(name) is None
    ]
    if find_spec("torch") is not None:
        import torch

        driver = driver_version()
        print("driver", driver or "is not there")
        print("C compiler", compiler() or "is not there")
        there = torch.cuda.is_available()
        print("CUDA", torch.version.cuda, torch.cuda.get_device_properties(0) if there else "is not there")
        missing += what_is_missing(torch, driver)
    for line in missing:
        print("MISSING:", line)
    return 1 if missing and not os.environ.get("PYMLLM_GPU_REHEARSAL") else 0


if __name__ == "__main__":
    sys.exit(main())
