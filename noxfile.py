"""The words of tox.ini as nox sessions: each one calls tox, where the commands and descriptions are."""

from __future__ import annotations

import configparser
import itertools
import sys
from pathlib import Path

import nox

WORDS = (
    "lint",
    "types",
    "py",
    "unit",
    "properties",
    "meta",
    "mutated",
    "caught",
    "faults",
    "faults-of-servers",
    "mutation",
    "docs",
    "stress",
    "gpu",
    "sanitizer",
    "soak",
    "peers",
    "peers-older",
    "peers-dynamo",
    "probe-llama",
    "probe-vllm",
    "time-machine",
    "engines",
    "report",
    "bench",
    "bench-peers",
)
LABELS = ("matrix", "nightly")
# Cells of the matrix: nox -s py313-torch213-cuda -- --gpu-shard=1/3
PYTHONS = ("11", "12", "13", "14")
TORCHES = ("211", "213", "nightly")
DEVICES = ("cpu", "cuda")

TOX = configparser.ConfigParser(interpolation=None)
TOX.read(Path(__file__).with_name("tox.ini"))

nox.options.sessions = ["lint", "types", "py", "caught", "docs"]
nox.options.default_venv_backend = "none"


def offer(name: str, option: str) -> None:
    """Register the session ``name``, which is ``tox run <option> <name>``, with tox's description."""

    def run_tox(session: nox.Session) -> None:
        posargs = ["--", *session.posargs] if session.posargs else []
        session.run(sys.executable, "-m", "tox", "run", option, name, *posargs, external=True)

    described = TOX.get(f"testenv:{name}", "description", fallback=f"run tox {option} {name}")
    run_tox.__doc__ = f"{described[:1].upper()}{described[1:]}."
    nox.session(name=name)(run_tox)


for word in WORDS:
    offer(word, "-e")
for label in LABELS:
    offer(label, "-m")
for python, torch, device in itertools.product(PYTHONS, TORCHES, DEVICES):
    offer(f"py3{python}-torch{torch}-{device}", "-e")
