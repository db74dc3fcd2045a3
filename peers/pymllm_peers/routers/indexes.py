"""The indexes of the routers of aibrix and llm-d, of the workers that have a block, as programs in Go.

``PYMLLM_AIBRIX`` and ``PYMLLM_LLMD`` name the checkouts. A program of ours (``go/pymllm``) is compiled with
their files, and speaks the process protocol. What theirs import from elsewhere stands in, beside it: logs,
sets, a hash function, a table that forgets the least recent, queues. To compile for the first time may take
Go longer than a call may take by default; ``--timeout 120`` waits.

Neither index can be emptied, so a reset is a new one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pymllm.adapters.process.adapter import ProcessAdapter
from pymllm.history.files import Config
from pymllm_peers.compiled import compile_files
from pymllm_peers.projects import AIBRIX, LLMD

_OURS = Path(__file__).parent / "go"
_PROJECTS = {
    "aibrix": (AIBRIX, "github.com/vllm-project/aibrix"),
    "llmd": (LLMD, "github.com/llm-d/llm-d-kv-cache"),
}
"""By our program: the checkout, and the path by which Go imports from it."""

# Imports are found in the folder, and nothing is asked of a network.
_SETTINGS = {
    **{"GO111MODULE": "off", "GOPATH": "{folder}", "GOFLAGS": "", "GOTOOLCHAIN": "local"},
    "CGO_ENABLED": "0",
}


@functools.cache
def _compile(program: str) -> Path:
    """Return a program, compiled before or now; `ImportError` where there is no checkout or no Go."""
    checkout, root = _PROJECTS[program]
    files = {f"src/{root}/{path}": content for path, content in checkout.read().items()}
    files |= {f"src/{path.relative_to(_OURS)}": path.read_bytes() for path in _OURS.rglob("*.go")}
    command = ("go", "build", "-trimpath", "-o", "product", f"pymllm/{program}")
    return compile_files(f"{program}-index", files, command, _SETTINGS)


class _RouterIndex(ProcessAdapter):
    """The base of adapters of an index in Go; keys of a configuration avoid known bugs (peers/findings).

    With ``known_parents`` no worker stores below a block that it does not have.
    """

    KIND: ClassVar[str] = "index"
    PROGRAM: ClassVar[str]

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        type(self).COMMAND = (str(_compile(self.PROGRAM)),)
        super().__init__(name, config)


def _avoided(*keys: str) -> Config:
    known = ("single_blocks", "known_parents", "own_contexts")
    return {"own_hashes": False, **{key: key in keys for key in known}}


class AibrixIndex(_RouterIndex):
    """aibrix's ``SyncPrefixHashTable``, fed with events as its handler translates a server's.

    With ``single_blocks`` an event is about one block, and with ``own_contexts`` each worker serves a model
    of its own. All configurations but the last leave one thing as it is, so that a search meets it alone.
    """

    PROGRAM = "aibrix"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        _avoided("known_parents", "own_contexts"),
        _avoided("single_blocks", "own_contexts"),
        _avoided("single_blocks", "known_parents"),
        _avoided("single_blocks", "known_parents", "own_contexts"),
    )


class LlmdIndex(_RouterIndex):
    """llm-d's ``InMemoryIndex``, fed by its ``Pool`` of events and queried by its ``LongestPrefixScorer``."""

    PROGRAM = "llmd"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {"own_hashes": False, "known_parents": known} for known in (False, True)
    )
