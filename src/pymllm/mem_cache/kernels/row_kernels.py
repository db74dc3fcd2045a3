"""The Triton kernel that moves rows of two buffers in one launch.

Importing this module imports Triton; `pymllm.mem_cache.kernels.fused_rows` does, when a pool asks for it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_numbers(lanes, is_row, address, width, step):  # type: ignore[no-untyped-def]  # pragma: needs cuda
    """Load int64 or int32 row numbers, or generate consecutive ones if there is no index (width 0)."""
    # One compiled kernel serves both widths: the branch is the same for a whole launch, and no pass converts.
    numbers = lanes.to(tl.int64)
    if width == 8:
        numbers = tl.load(address.to(tl.pointer_type(tl.int64)) + numbers * step, mask=is_row, other=0)
    elif width == 4:
        narrow = tl.load(address.to(tl.pointer_type(tl.int32)) + numbers * step, mask=is_row, other=0)
        numbers = narrow.to(tl.int64)
    return numbers


@triton.jit
def move_part(  # type: ignore[no-untyped-def]  # pragma: needs cuda
    program,
    count,
    layers,
    words,
    read,
    read_width,
    read_step,
    write,
    write_width,
    write_step,
    source,
    source_layer,
    source_row,
    target,
    target_layer,
    target_row,
    UNIT: tl.constexpr,
    WORD: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    CLEAR: tl.constexpr,
    BARRIER: tl.constexpr,
):
    """Move one tile of ROWS rows in one layer, with CHUNK words of each row."""
    LANES: tl.constexpr = UNIT * 8 // WORD.primitive_bitwidth
    chunks = tl.cdiv(words, CHUNK)
    layer = (program // chunks % layers).to(tl.int64)
    lanes = program // (chunks * layers) * ROWS + tl.arange(0, ROWS)
    columns = program % chunks * CHUNK + tl.arange(0, CHUNK)
    is_row = lanes < count
    # Rows have whole units. Counted in units, the mask is seen to cut none in two, and an access moves one.
    mask = is_row[:, None] & (columns // LANES < words // LANES)[None, :]

    # All of this is 64-bit: rows can be beyond 2^31 elements. The compiler does not know how a pointer that
    # was a number is aligned; told, it moves 16 bytes at a time.
    if CLEAR:
        tile = tl.zeros([ROWS, CHUNK], dtype=WORD)
    else:
        at = row_numbers(lanes, is_row, read, read_width, read_step)
        first = source.to(tl.pointer_type(WORD)) + layer * source_layer
        sources = tl.multiple_of(first + ((at * source_row)[:, None] + columns[None, :]), (1, UNIT))
        tile = tl.load(sources, mask=mask)
    # The content is on its way while it is looked up where it goes.
    to = row_numbers(lanes, is_row, write, write_width, write_step)
    first = target.to(tl.pointer_type(WORD)) + layer * target_layer
    targets = tl.multiple_of(first + ((to * target_row)[:, None] + columns[None, :]), (1, UNIT))
    if BARRIER:
        # A row may be read and written by one call. The tile has all rows of its columns, and no other tile
        # has any of those, so that all are read before one is written.
        tl.debug_barrier()
    tl.store(targets, tile, mask=mask)


# No number is a constant of the compiled kernel, so that it serves every batch, layer and address.
@triton.jit(do_not_specialize=list(range(23)))
def move_rows(  # type: ignore[no-untyped-def]  # pragma: needs cuda
    a_programs: tl.int32,
    count: tl.int32,
    layers: tl.int32,
    read: tl.int64,
    read_width: tl.int32,
    read_step: tl.int64,
    write: tl.int64,
    write_width: tl.int32,
    write_step: tl.int64,
    a_words: tl.int32,
    a_source: tl.int64,
    a_source_layer: tl.int64,
    a_source_row: tl.int64,
    a_target: tl.int64,
    a_target_layer: tl.int64,
    a_target_row: tl.int64,
    b_words: tl.int32,
    b_source: tl.int64,
    b_source_layer: tl.int64,
    b_source_row: tl.int64,
    b_target: tl.int64,
    b_target_layer: tl.int64,
    b_target_row: tl.int64,
    A_UNIT: tl.constexpr,
    A_WORD: tl.constexpr,
    A_ROWS: tl.constexpr,
    A_CHUNK: tl.constexpr,
    B_UNIT: tl.constexpr,
    B_WORD: tl.constexpr,
    B_ROWS: tl.constexpr,
    B_CHUNK: tl.constexpr,
    CLEAR: tl.constexpr,
    BARRIER: tl.constexpr,
):
    """Move rows of the first buffer in the first half of the programs, and of the second in the others."""
    program = tl.program_id(0)
    if program < a_programs:
        move_part(
            program, count, layers, a_words, read, read_width, read_step, write, write_width, write_step,
            a_source, a_source_layer, a_source_row, a_target, a_target_layer, a_target_row,
            A_UNIT, A_WORD, A_ROWS, A_CHUNK, CLEAR, BARRIER,
        )  # fmt: skip
    else:
        move_part(
            program - a_programs, count, layers, b_words, read, read_width, read_step, write, write_width,
            write_step, b_source, b_source_layer, b_source_row, b_target, b_target_layer, b_target_row,
            B_UNIT, B_WORD, B_ROWS, B_CHUNK, CLEAR, BARRIER,
        )  # fmt: skip
