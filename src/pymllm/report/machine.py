"""The description of this machine, and of the measuring code and its commit."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.provenance import find_processor
from pymllm.instrument.reading import Unreadable
from pymllm.report.records import Gpu, Machine, make_machine


def look_at_this_machine() -> Machine:
    """Return this machine's description; ``PYMLLM_MACHINE`` names it if hardware cannot distinguish machines.

    GPUs are those that NVML tells of, whether torch sees them or not. Cost: NVML is opened, tens of
    milliseconds; no CUDA.
    """
    memory = None
    with suppress(ValueError, OSError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    name, cores = os.environ.get("PYMLLM_MACHINE") or None, len(os.sched_getaffinity(0))
    system = f"{platform.system()} {platform.machine()}"
    return make_machine(find_processor(), cores, memory, system, *_gpus(), name)


def _gpus() -> tuple[tuple[Gpu, ...], str | None]:
    library = NvmlLibrary()
    try:
        library.open()
    except Unreadable as reason:
        return (), str(reason)
    try:
        driver = str(library.call("nvmlSystemGetDriverVersion"))
        count = int(library.call("nvmlDeviceGetCount"))
        return tuple(_gpu(library, index, driver) for index in range(count)), None
    except Unreadable as reason:
        return (), str(reason)
    finally:
        library.close()


def _gpu(library: NvmlLibrary, index: int, driver: str) -> Gpu:
    handle = library.call("nvmlDeviceGetHandleByIndex", index)
    memory = None
    with suppress(Unreadable):
        memory = int(library.call("nvmlDeviceGetMemoryInfo", handle).total)
    return Gpu(str(library.call("nvmlDeviceGetName", handle)), memory, driver)


def find_commit(folder: Path | None = None) -> tuple[str | None, bool]:
    """Return the commit of a folder, by default the working one, and whether tracked files differ.

    ``None`` where there is no repository, no commit, or no git, and ``PYMLLM_COMMIT`` does not name one for a
    tree that came without its history.
    """
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return os.environ.get("PYMLLM_COMMIT") or None, False
    return commit, bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))


_NOTHING_RUNS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
"""Options that keep git from starting programs that the settings of a foreign folder name."""


def _git(folder: Path | None, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *_NOTHING_RUNS, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def hash_of_code(files: Iterable[Path]) -> str:
    """Return a hash of the measuring code, so that an edited benchmark is never compared with its past.

    The files are the benchmark's own and those of its helpers, in any order; where they lie does not count.
    """
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.name):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
