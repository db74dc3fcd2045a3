"""The use of the Triton kernel for two buffers in one launch, where Triton is available.

Here is what the host knows of a launch: in which words rows are moved, in tiles of which shape, from which
addresses. `pymllm.mem_cache.kernels.row_kernels` has the kernel. What does not fit (rows that lie scattered,
or at addresses that are not aligned) is refused before anything is launched, and torch moves it.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import torch

from pymllm.mem_cache.arguments import as_switch
from pymllm.mem_cache.uploads import bring

#: Where row numbers are: address, bytes of a number, and numbers from one to the next.
Index: TypeAlias = tuple[int, int, int]
#: Where rows are: address of the first, and words from a layer to the next and from a row to the next.
Place: TypeAlias = tuple[int, int, int]
Launch: TypeAlias = Callable[[int, tuple[int, ...]], None]
T = TypeVar("T")

#: Rows are counted, not looked up.
NO_INDEX: Final[Index] = (0, 0, 0)
_NO_PLACE: Final[Place] = (0, 0, 0)
_INDEX_WIDTHS: Final = {torch.int32: 4, torch.int64: 8}

# A thread of a GPU moves at most 16 bytes at once; DRAM and L2 are read in sectors of 32.
_WIDEST_UNIT: Final = 16
_SECTOR: Final = 32
# As many threads as leave each of them 8 words of a tile (64 bytes, four accesses under way), or 16 of a tile
# that is held until all of it is read. Not yet tuned on a device.
_WORDS_PER_WARP: Final = {False: 32 * 8, True: 32 * 16}


class RowForm(NamedTuple):
    """The pieces in which rows of a buffer are moved."""

    # Bytes that every address of a row is a multiple of, at most 16: what one access of a thread moves
    unit: int
    word: int  # Bytes of the integers that rows are seen as, at most 8
    words: int  # Words of a row; 0 where rows are empty

    @classmethod
    def of(cls, buffers: Sequence[torch.Tensor], leading: int) -> RowForm:
        """Return the form with the widest pieces for rows of equal, contiguous buffers."""
        row = buffers[0].shape[leading:].numel() * buffers[0].dtype.itemsize
        unit = math.gcd(_WIDEST_UNIT, row, *(buffer.data_ptr() for buffer in buffers))
        word = min(unit, 8)
        return cls(unit, word, row // word)

    def chunk(self, most: int) -> int:
        """Return the number of words of a row in one tile: a power of two, at most ``most``.

        A row is rarely a power of two. Of the chunks that add at most an eighth to it the largest is taken;
        where there is none, a sector's worth.
        """
        whole = 1 << (self.words - 1).bit_length() if self.words else 1
        least = min(max(self.unit, _SECTOR) // self.word, most)
        chunk = max(min(most, whole), least)
        while chunk > least and -(-self.words // chunk) * chunk * 8 > self.words * 9:
            chunk //= 2
        return chunk


class _Tiles(NamedTuple):
    """A compiled kernel, and the tiles into which it divides both buffers."""

    launch: Launch
    rows: tuple[int, int]
    chunks: tuple[int, int]


class FusedRows:
    """A mover of the same rows in two buffers, in one launch.

    ``device``: where the buffers are. ``forms``: of the two buffers. ``layers``: layers of both that every
    launch serves. ``tile_words``: words that one program moves. ``row_limits``: empty where sources and
    targets are different memory: then any number of rows goes in one launch. Otherwise the numbers of rows,
    ascending, for which a kernel is prepared that reads all of them before it writes one; more than the last
    are refused. ``clears``: whether rows are filled with zeros, from no source. All kernels are compiled and
    loaded here, so that none is while a graph is captured. They depend on the forms alone, and pools share
    them. Laws: P3, P5, C7.
    """

    def __init__(
        self,
        device: torch.device,
        forms: tuple[RowForm, RowForm],
        layers: int,
        *,
        tile_words: int,
        row_limits: Sequence[int] = (),
        clears: bool = False,
    ) -> None:
        self.forms = forms
        self._layers = layers
        self._limits = tuple(row_limits)
        self._tiles = [self._prepare(device, tile_words, limit, clears) for limit in self._limits or (None,)]

    def _prepare(self, device: torch.device, tile_words: int, limit: int | None, clears: bool) -> _Tiles:
        chunks = [form.chunk(tile_words // (limit or 1)) for form in self.forms]
        # Without a limit, tiles take as many rows as fill them.
        rows = [limit or max(tile_words // chunk, 1) for chunk in chunks]
        # A single row cannot be in another's way.
        ordered = limit is not None and limit > 1
        warps = max(1, min(tile_words // _WORDS_PER_WARP[ordered], 8))
        shapes = tuple(
            (form.unit, form.word, row_count, chunk)
            for form, row_count, chunk in zip(self.forms, rows, chunks, strict=True)
        )
        launch = _compiled(device, shapes, clears, ordered, warps)
        return _Tiles(launch, (rows[0], rows[1]), (chunks[0], chunks[1]))

    def move(
        self,
        count: int,
        sources: tuple[Place, Place] | None,
        read: Index,
        targets: tuple[Place, Place],
        write: Index,
    ) -> bool:
        """Copy rows, or set them to zero if there are no sources.

        Cost: one launch; no synchronisation.
        """
        prepared = bisect_left(self._limits, count)
        if prepared == len(self._tiles):
            return False
        launch, (a_rows, b_rows), (a_chunk, b_chunk) = self._tiles[prepared]
        a_words, b_words = self.forms[0].words, self.forms[1].words
        layers = self._layers
        a_programs = -(-count // a_rows) * -(-a_words // a_chunk) * layers
        programs = a_programs + -(-count // b_rows) * -(-b_words // b_chunk) * layers
        if programs:
            (a_source, b_source), (a_target, b_target) = sources or (_NO_PLACE, _NO_PLACE), targets
            numbers = (a_programs, count, layers, *read, *write, a_words, *a_source, *a_target)
            launch(programs, (*numbers, b_words, *b_source, *b_target))
        return True


def index_of(rows: torch.Tensor) -> Index:
    """Return the location of row numbers in memory: int32 or int64, one dimension, any stride."""
    return rows.data_ptr(), _INDEX_WIDTHS[rows.dtype], rows.stride(0)


def as_kernel_index(rows: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return row numbers in a kernel's form: on its device, and as int64 unless they are int32."""
    if rows.dtype not in _INDEX_WIDTHS:
        return bring(rows, device)
    return rows if rows.device == device else bring(rows, device, rows.dtype)


def place_of(rows: torch.Tensor, form: RowForm, leading: int) -> Place | None:
    """Return the location of rows in memory, if a kernel can move them in that form.

    ``rows``: ``[rows, ...]`` or ``[layers, rows, ...]``, in a dtype whose rows have the form's bytes. Returns
    A `Place`; None where a row does not lie in one piece, or not at a multiple of the form's unit. Cost:
    O(1), on the host.
    """
    address = rows.data_ptr()
    if address % form.unit:
        return None
    if rows.is_contiguous():
        return address, form.words * rows.shape[leading - 1] if leading == 2 else 0, form.words
    expected = 1
    for size, stride in zip(rows.shape[: leading - 1 : -1], rows.stride()[: leading - 1 : -1], strict=True):
        if size > 1 and stride != expected:
            return None
        expected *= size
    width = rows.dtype.itemsize
    steps = [
        stride * width if size > 1 else 0
        for size, stride in zip(rows.shape[:leading], rows.stride()[:leading], strict=True)
    ]
    if any(step % form.unit for step in steps):
        return None
    layer_step = steps[0] if leading == 2 else 0
    return address, layer_step // form.word, steps[-1] // form.word


def make_fused(fused: bool | None, device: torch.device, build: Callable[[], T]) -> T | None:
    """Return the kernel launcher if it was requested or can be built.

    ``fused``: always, never, or (None) on CUDA devices where Triton is installed and works. Returns what
    ``build`` returned; None where torch is to move rows. Laws: X1.
    """
    if as_switch("fused", fused) is False or (fused is None and device.type != "cuda"):
        return None
    obstacle = _obstacle(device)
    if obstacle is not None:
        if fused:
            raise ValueError(
                f"fused=True cannot be on {device}: {obstacle}; leave it out and torch moves rows"
            )
        return None
    try:
        return build()
    except Exception as error:  # a compiler, a linker, a cache folder: whatever Triton needs may be missing
        if fused:
            raise
        warnings.warn(f"Triton does not work on {device}, torch moves rows: {error!r}", RuntimeWarning, 3)
        return None


def _obstacle(device: torch.device) -> str | None:
    """Return the reason why kernels cannot move rows on a device."""
    try:
        import triton
    except ImportError as error:
        return f"there is no Triton ({error})"
    interpreted = triton.knobs.runtime.interpret
    if device.type == "cpu" and not interpreted:
        return "on the CPU Triton only interprets kernels, with TRITON_INTERPRET=1 in the environment"
    if device.type != "cpu" and interpreted:
        return "TRITON_INTERPRET=1 is set, and an interpreted kernel runs on the host"
    return None if device.type in ("cpu", "cuda") else "its kernels are for CUDA devices"


@cache
def _compiled(
    device: torch.device,
    shapes: tuple[tuple[int, int, int, int], ...],
    clears: bool,
    ordered: bool,
    warps: int,
) -> Launch:
    """Compile and load a kernel for a device; pools with rows of similar form share it."""
    import triton.language as tl

    from pymllm.mem_cache.kernels.row_kernels import move_rows

    words = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}
    constants = [value for unit, word, rows, chunk in shapes for value in (unit, words[word], rows, chunk)]
    constants += [clears, ordered]
    if device.type == "cpu":
        return lambda programs, numbers: move_rows[(programs,)](*numbers, *constants)
    return _loaded(device, move_rows, constants, warps)  # pragma: needs cuda


def _loaded(
    device: torch.device, kernel: Any, constants: list[Any], warps: int
) -> Launch:  # pragma: needs cuda
    # Through the compiled kernel itself: Triton's usual way looks it up by all arguments at each launch, 12.4
    # us of the host against 2.5 (Triton 3.6, without the driver's part). One of no rows loads it.
    nothing = (1, 0, 1, *NO_INDEX, *NO_INDEX, *(1, *_NO_PLACE, *_NO_PLACE) * 2)
    with torch.cuda.device(device):
        compiled = kernel.warmup(*nothing, *constants, num_warps=warps, grid=(1,))
        compiled[1, 1, 1](*nothing, *constants)

    def launch(programs: int, numbers: tuple[int, ...]) -> None:
        if torch.cuda.current_device() == device.index:
            compiled[programs, 1, 1](*numbers, *constants)
        else:
            with torch.cuda.device(device):
                compiled[programs, 1, 1](*numbers, *constants)

    return launch
