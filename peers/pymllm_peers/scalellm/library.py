"""ScaleLLM's ``BlockAllocator`` and ``PrefixCache`` as a library, compiled from a checkout and `driver.cpp`.

``PYMLLM_SCALELLM`` names the checkout. What stands in for glog and absl is beside the driver: a check that
fails raises here, and the clock counts how often it was looked at.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pymllm_peers.compiled import compile_files
from pymllm_peers.projects import SCALELLM

_OURS = Path(__file__).parent
_COMMAND = (
    *("g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-fno-access-control"),
    *("-Istand_ins", "-Isrc", "-o", "product", "driver.cpp"),
    *(f"src/memory/{name}.cpp" for name in ("block", "block_allocator", "prefix_cache")),
)
_REFUSED = -2
"""What a function returns where a check of ScaleLLM's has failed."""


@functools.cache
def _load() -> ctypes.CDLL:
    """Compile the library, or find it compiled; `ImportError` where there is no checkout or no compiler."""
    own = [path for pattern in ("*.cpp", "stand_ins/**/*.h") for path in _OURS.glob(pattern)]
    files = {str(path.relative_to(_OURS)): path.read_bytes() for path in own}
    library = ctypes.CDLL(str(compile_files("scalellm", {**SCALELLM.read(), **files}, _COMMAND)))
    library.scale_new.restype = ctypes.c_void_p
    library.scale_failure.restype = library.scale_audit.restype = ctypes.c_char_p
    return library


class ScaleMemory:
    """An allocator, a cache over it, and the owners of the blocks; block 0 is padding, as in ScaleLLM itself.

    A check of ScaleLLM's that fails is a `RuntimeError` with its text. ``step`` is how many microseconds
    later the clock is each time that anybody looks.
    """

    def __init__(self, blocks: int, block_size: int, step: int = 1) -> None:
        self._library = _load()
        self._size = block_size
        self._room = (ctypes.c_int32 * ((blocks + 1) * (3 + block_size)))()
        self._memory = ctypes.c_void_p(self._library.scale_new(blocks, block_size, step))
        if not self._memory:
            raise RuntimeError(self._failure())

    def _failure(self) -> str:
        text: bytes = self._library.scale_failure()
        return text.decode()

    def _call(self, function: str, *arguments: Any) -> int:
        answer: int = getattr(self._library, f"scale_{function}")(self._memory, *arguments)
        if answer == _REFUSED:
            raise RuntimeError(self._failure())
        return answer

    def close(self) -> None:
        """Free the allocator, the cache and the blocks."""
        memory, self._memory = self._memory, ctypes.c_void_p()
        if memory:
            self._library.scale_delete(memory)

    @property
    def free_blocks(self) -> int:
        """Return the number of blocks without an owner."""
        return self._call("free_blocks")

    @property
    def cached_blocks(self) -> int:
        """The number of cached blocks, as the cache counts them."""
        return self._call("cached_blocks")

    def alloc(self, blocks: int) -> list[int] | None:
        """Allocate blocks; ``None`` where there are too few."""
        count = self._call("alloc", blocks, self._room)
        return None if count < 0 else self._room[:count]

    def free(self, blocks: Sequence[int]) -> None:
        """Free allocated blocks."""
        self._call("free", _numbers(blocks), len(blocks))

    def match(self, tokens: Sequence[Any]) -> list[int]:
        """Return the blocks of the longest cached prefix."""
        return self._room[: self._call("match", _numbers(tokens), len(tokens), self._room)]

    def insert(self, tokens: Sequence[Any], blocks: Sequence[int]) -> int:
        """Cache whole blocks of tokens, and return the number of new tokens."""
        return self._call("insert", _numbers(tokens), len(tokens), _numbers(blocks))

    def evict(self, blocks: int) -> tuple[int, list[int]]:
        """Evict some blocks; return the library's own count, and the blocks that became free."""
        freed = ctypes.c_int32()
        count = self._call("evict", blocks, self._room, ctypes.byref(freed))
        return count, self._room[: freed.value]

    def hold(self, tokens: Sequence[Any]) -> int | None:
        """Match tokens, and hold the found blocks; ``None`` where not all tokens were found."""
        hold = self._call("hold", _numbers(tokens), len(tokens))
        return None if hold < 0 else hold

    def release(self, hold: int) -> None:
        """Release a hold."""
        self._call("release", hold)

    def reset(self) -> list[int]:
        """End all holds, begin with a new cache, and return the blocks that became free."""
        return self._room[: self._call("reset", self._room)]

    def inspect(self) -> list[tuple[int, int, int, tuple[int, ...]]]:
        """Return each cached block, parents first: it, the block above it or 0, its holds, its tokens."""
        width = 3 + self._size
        count = self._call("inspect", self._room)
        rows = (self._room[at : at + width] for at in range(0, count * width, width))
        return [(row[0], row[1], row[2], tuple(row[3:])) for row in rows]

    def find_fault(self) -> str:
        """Walk the tree from inside, and describe its fault; empty where there is none."""
        fault: bytes = self._library.scale_audit(self._memory)
        return fault.decode()


def _numbers(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int32 * len(numbers))(*numbers)
