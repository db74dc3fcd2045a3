"""The kernel once more, as plain Python on host memory: for tests of what the host says in a launch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from pymllm.mem_cache.kernels.fused_rows import Launch


class Shape(NamedTuple):
    unit: int
    word: int
    rows: int
    chunk: int


class PlainKernel:
    """On the CPU, move rows as `pymllm.mem_cache.kernels.row_kernels.move_rows` promises, and count launches.

    A tile is read before any of it is written only where the launch was compiled for that.
    """

    def __init__(self, elsewhere: Callable[..., Launch]) -> None:
        self._elsewhere = elsewhere
        self.launches: list[tuple[int, tuple[int, ...]]] = []
        self.compiled: list[tuple[Any, ...]] = []

    def compile(
        self,
        device: torch.device,
        shapes: tuple[tuple[int, int, int, int], ...],
        clears: bool,
        ordered: bool,
        warps: int,
    ) -> Launch:
        if device.type != "cpu":
            return self._elsewhere(device, shapes, clears, ordered, warps)
        self.compiled.append((shapes, clears, ordered, warps))
        parts = [Shape(*shape) for shape in shapes]

        def launch(programs: int, numbers: tuple[int, ...]) -> None:
            self.launches.append((programs, numbers))
            a_programs, count, layers = numbers[:3]
            read, write = numbers[3:6], numbers[6:9]
            ends = [(0, a_programs), (a_programs, programs)]
            for part, (first, end), of_part in zip(parts, ends, (numbers[9:16], numbers[16:]), strict=True):
                words, source, target = of_part[0], of_part[1:4], of_part[4:]
                for program in range(end - first):
                    perform(
                        tile_of(part, program, count, layers, words, read, source, write, target),
                        clears,
                        ordered,
                    )

        return launch


def tile_of(
    part: Shape,
    program: int,
    count: int,
    layers: int,
    words: int,
    read: tuple[int, ...],
    source: tuple[int, ...],
    write: tuple[int, ...],
    target: tuple[int, ...],
) -> list[tuple[int, int, int]]:
    """Return the moves of one program: the source and target address and the number of bytes."""
    chunks = -(-words // part.chunk)
    layer = program // chunks % layers
    columns = range(program % chunks * part.chunk, min(words, (program % chunks + 1) * part.chunk))
    block = program // (chunks * layers)
    moves = []
    for lane in range(block * part.rows, min(count, (block + 1) * part.rows)):
        ends = []
        for index, (address, layer_step, row_step) in ((read, source), (write, target)):
            words_before = layer * layer_step + row_of(lane, *index) * row_step + columns.start
            ends.append(address + words_before * part.word)
            assert ends[-1] % part.unit == 0, "an access of a unit that is not aligned"
        moves.append((ends[0], ends[1], len(columns) * part.word))
    return moves


def row_of(lane: int, address: int, width: int, step: int) -> int:
    if width == 0:
        return lane
    return int.from_bytes(ctypes.string_at(address + lane * step * width, width), "little", signed=True)


def perform(moves: list[tuple[int, int, int]], clears: bool, ordered: bool) -> None:
    def content(source: int, size: int) -> bytes:
        return bytes(size) if clears else ctypes.string_at(source, size)

    read = [content(source, size) for source, _, size in moves] if ordered else None
    for number, (source, target, size) in enumerate(moves):
        ctypes.memmove(target, read[number] if read else content(source, size), size)
