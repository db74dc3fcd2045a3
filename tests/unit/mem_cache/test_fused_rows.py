"""One launch for rows of two buffers: what the host says in it, and what it moves."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from pymllm.mem_cache.kernels import fused_kv, fused_rows
from pymllm.mem_cache.kernels.fused_kv import FusedKV
from pymllm.mem_cache.kernels.fused_rows import (
    FusedRows,
    RowForm,
    as_kernel_index,
    index_of,
    make_fused,
    place_of,
)
from pymllm.mem_cache.kernels.fused_states import FusedStates
from tests.unit.mem_cache.plain_kernel import PlainKernel

# -- launches ------------------------------------------------------------------------------------------------


CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("shape", "dtype", "form"),
    [
        ((9, 8, 128), torch.bfloat16, (16, 8, 256)),
        ((9, 3, 2), torch.float32, (8, 8, 3)),
        ((9, 3), torch.float32, (4, 4, 3)),
        ((9, 5), torch.float16, (2, 2, 5)),
        ((9, 3), torch.float8_e4m3fn, (1, 1, 3)),
        ((9, 1), torch.complex128, (16, 8, 2)),
        ((9, 4, 0), torch.float32, (16, 8, 0)),
    ],
)
def test_rows_are_moved_in_the_widest_pieces(
    shape: tuple[int, ...], dtype: torch.dtype, form: tuple[int, int, int]
) -> None:
    """P3: 16 bytes at once where a row is made of such; nothing of a neighbour's row where it is not."""
    assert RowForm.of([torch.zeros(shape, dtype=dtype)] * 2, 1) == form


def test_the_form_fits_every_buffer() -> None:
    """P3: one kernel serves all layers, wherever torch put them."""
    memory = torch.zeros(200, dtype=torch.int8)
    start = -memory.data_ptr() % 16
    buffers = [memory[start + first : start + first + 64].view(4, 16) for first in (0, 68)]
    assert RowForm.of(buffers[:1], 1).unit == 16
    assert RowForm.of(buffers, 1) == (4, 4, 4)


@pytest.mark.parametrize(
    ("form", "most", "chunk"),
    [
        ((16, 8, 256), 1024, 256),
        ((16, 8, 256), 64, 64),
        ((16, 8, 144), 1024, 32),
        ((16, 8, 6144), 4096, 2048),
        ((16, 8, 262144), 8, 8),
        ((8, 8, 3), 1024, 4),
        ((2, 2, 5), 1024, 16),
        ((1, 1, 1), 1024, 32),
        ((16, 8, 2), 8, 4),
        ((16, 8, 0), 1024, 4),
        ((16, 8, 300), 2, 2),
    ],
)
def test_tiles_leave_few_threads_without_work(form: tuple[int, int, int], most: int, chunk: int) -> None:
    """P3: at most an eighth of a row's tiles is beyond its end, or a piece is one sector."""
    assert RowForm(*form).chunk(most) == chunk


def aligned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    rows = torch.arange(torch.Size(shape).numel()).to(dtype).view(shape)
    assert rows.data_ptr() % 16 == 0
    return rows


def test_a_place_is_an_address_and_steps() -> None:
    """P3, P5: of rows that lie in one piece, however far from each other."""
    form = RowForm(16, 8, 4)
    rows = aligned(6, 2, 4)
    assert place_of(rows, form, 1) == (rows.data_ptr(), 0, 4)
    assert place_of(rows[2:], form, 1) == (rows.data_ptr() + 64, 0, 4)
    assert place_of(rows[::3], form, 1) == (rows.data_ptr(), 0, 12)
    assert place_of(rows[:1].expand(5, 2, 4), form, 1) == (rows.data_ptr(), 0, 0)
    qkv = aligned(3, 24)
    assert place_of(qkv[:, 4:12].view(3, 2, 4), form, 1) == (qkv.data_ptr() + 16, 0, 12)
    layers = aligned(2, 6, 2, 4)
    assert place_of(layers, form, 2) == (layers.data_ptr(), 24, 4)
    assert place_of(layers[:, 1:4], form, 2) == (layers.data_ptr() + 32, 24, 4)
    assert place_of(layers.transpose(0, 1), form, 2) == (layers.data_ptr(), 4, 24)


def test_steps_that_are_never_taken_do_not_matter() -> None:
    """P3: torch keeps any stride where a dimension has one element or none."""
    form = RowForm(16, 8, 4)
    rows = aligned(3, 9)
    assert place_of(rows[1:1, :8].view(0, 2, 4), form, 1) is not None
    alone = torch.as_strided(rows, (1, 1, 8), (5, 3, 1))
    assert place_of(alone, form, 1) == (rows.data_ptr(), 0, 4)
    apart = torch.as_strided(rows, (1, 2, 1, 8), (5, 16, 3, 1))
    assert place_of(apart, form, 2) == (rows.data_ptr(), 0, 8)


@pytest.mark.parametrize(
    ("rows", "leading"),
    [
        (aligned(6, 4, 2).transpose(1, 2), 1),
        (aligned(6, 2, 8)[..., ::2], 1),
        (aligned(49)[1:].view(6, 2, 4), 1),
        (aligned(6, 9)[:, :8].view(6, 2, 4), 1),
        (torch.as_strided(aligned(400), (2, 3, 2, 4), (57, 8, 4, 1)), 2),
        (torch.as_strided(aligned(400), (2, 3, 2, 4), (64, 9, 4, 1)), 2),
    ],
    ids=["heads apart", "elements apart", "off by one", "odd rows", "odd layers", "odd rows of layers"],
)
def test_rows_out_of_place_are_left_to_torch(rows: torch.Tensor, leading: int) -> None:
    """P3: a kernel that was compiled for aligned pieces must not meet others."""
    assert place_of(rows, RowForm(16, 8, 4), leading) is None


def test_an_index_is_read_as_it_is() -> None:
    """P3: int32 and int64 without a pass that converts; any stride."""
    wide = torch.arange(8)
    assert index_of(wide) == (wide.data_ptr(), 8, 1)
    assert index_of(wide[2::3]) == (wide.data_ptr() + 16, 8, 3)
    narrow = wide.int()
    assert as_kernel_index(narrow, CPU) is narrow
    assert as_kernel_index(wide, CPU) is wide
    assert index_of(narrow) == (narrow.data_ptr(), 4, 1)
    for dtype in (torch.uint8, torch.int16, torch.uint32, torch.uint64):
        assert as_kernel_index(wide.to(dtype), CPU).dtype is torch.int64


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_an_index_goes_to_the_device_of_the_rows(dtype: torch.dtype) -> None:
    """P3: a device without memory stands in for a GPU; one number for each row, wide enough."""
    index = as_kernel_index(torch.arange(3).to(dtype), torch.device("meta"))
    assert (index.device.type, index.shape) == ("meta", (3,))
    assert index.dtype is (torch.int64 if dtype is torch.uint8 else dtype)


def rows_pair(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return aligned(*shape, 2, 4), aligned(*shape, 3, dtype=torch.float64)


def make_rows(tile_words: int = 64, **options: Any) -> FusedRows:
    a, b = rows_pair(2, 5)
    return FusedRows(CPU, (RowForm.of([a], 2), RowForm.of([b], 2)), 2, tile_words=tile_words, **options)


def test_a_kernel_is_compiled_for_each_limit_when_the_rows_are_built(plain_kernel: PlainKernel) -> None:
    """None is compiled later, when a graph may be captured."""
    make_rows(row_limits=(1, 8))
    make_rows()
    make_rows(tile_words=4096, clears=True)
    make_rows(tile_words=800)
    make_rows(tile_words=4)
    assert plain_kernel.compiled == [
        (((16, 8, 1, 4), (8, 8, 1, 4)), False, False, 1),
        (((16, 8, 8, 4), (8, 8, 8, 4)), False, True, 1),
        (((16, 8, 16, 4), (8, 8, 16, 4)), False, False, 1),
        (((16, 8, 1024, 4), (8, 8, 1024, 4)), True, False, 8),
        (((16, 8, 200, 4), (8, 8, 200, 4)), False, False, 3),
        (((16, 8, 1, 4), (8, 8, 1, 4)), False, False, 1),
    ]


def test_kernels_are_for_gpus_unless_asked_for() -> None:
    """A pool on the CPU does not even look for Triton."""

    def build() -> str:
        pytest.fail("nobody asked")

    assert make_fused(None, CPU, build) is None
    assert make_fused(False, CPU, build) is None
    assert make_fused(False, CUDA, build) is None
    for wrong in (1, "yes"):
        with pytest.raises(TypeError, match="fused must be True, False or None"):
            make_fused(wrong, CPU, build)  # type: ignore[arg-type]


def test_a_kernel_that_cannot_be_is_refused_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: asked for, it is an error that says why; left to the pool, torch moves rows."""
    monkeypatch.setattr(fused_rows, "_obstacle", lambda device: "the moon is full")
    with pytest.raises(ValueError, match="fused=True") as raised:
        make_fused(True, CPU, lambda: 1)
    words = "fused=True cannot be on cpu: the moon is full; leave it out and torch moves rows"
    assert str(raised.value) == words
    assert make_fused(None, CUDA, lambda: 1) is None
    monkeypatch.setattr(fused_rows, "_obstacle", lambda device: None)
    assert make_fused(True, CPU, lambda: 1) == make_fused(None, CUDA, lambda: 1) == 1


def test_a_broken_compiler_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: a pool that can do without a kernel does, but not in silence."""
    monkeypatch.setattr(fused_rows, "_obstacle", lambda device: None)

    def build() -> None:
        raise OSError("no C compiler")

    def build_a_pool() -> object:
        return make_fused(None, CUDA, build)

    def want_a_pool() -> object:
        return build_a_pool()

    with pytest.warns(RuntimeWarning, match="Triton") as warned:
        assert want_a_pool() is None
    words = "Triton does not work on cuda:0, torch moves rows: OSError('no C compiler')"
    assert [str(it.message) for it in warned] == [words]
    assert (warned[0].filename, warned[0].lineno) == (__file__, want_a_pool.__code__.co_firstlineno + 1)
    with pytest.raises(OSError, match="no C compiler"):
        make_fused(True, CUDA, build)


@pytest.mark.parametrize(
    ("device", "interpreted", "obstacle"),
    [
        (
            "cpu",
            False,
            "on the CPU Triton only interprets kernels, with TRITON_INTERPRET=1 in the environment",
        ),
        ("cpu", True, None),
        ("cuda:0", False, None),
        ("cuda:0", True, "TRITON_INTERPRET=1 is set, and an interpreted kernel runs on the host"),
        ("mps", False, "its kernels are for CUDA devices"),
    ],
)
def test_where_kernels_run(
    monkeypatch: pytest.MonkeyPatch, device: str, interpreted: bool, obstacle: str | None
) -> None:
    """Compiled on CUDA, interpreted on the host, whose memory neither has from the other."""
    triton = SimpleNamespace(knobs=SimpleNamespace(runtime=SimpleNamespace(interpret=interpreted)))
    monkeypatch.setitem(sys.modules, "triton", triton)  # type: ignore[arg-type]
    assert fused_rows._obstacle(torch.device(device)) == obstacle


def test_without_triton_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is optional everywhere."""
    monkeypatch.setitem(sys.modules, "triton", None)  # type: ignore[arg-type]
    words = str(fused_rows._obstacle(CUDA))
    assert words.startswith("there is no Triton (")
    assert "triton" in words[20:]
    assert make_fused(None, CUDA, lambda: 1) is None


def test_the_kernel_gets_its_shapes_as_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """And numbers as arguments; a kernel is made once for like shapes."""
    launches = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *arguments: launches.append((grid, arguments))

    language, kernels = ModuleType("triton.language"), ModuleType("row_kernels")
    language.__dict__.update(int8="i8", int16="i16", int32="i32", int64="i64")
    kernels.__dict__.update(move_rows=Kernel())
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton.language", language)
    monkeypatch.setattr(sys.modules["triton"], "language", language, raising=False)
    monkeypatch.setitem(sys.modules, "pymllm.mem_cache.kernels.row_kernels", kernels)
    fused_rows._compiled.cache_clear()
    try:
        launch = fused_rows._compiled(CPU, ((16, 8, 4, 256), (2, 2, 64, 16)), False, True, 4)
        assert launch is fused_rows._compiled(CPU, ((16, 8, 4, 256), (2, 2, 64, 16)), False, True, 4)
        launch(7, (1, 2, 3))
        fused_rows._compiled(CPU, ((4, 4, 1, 8), (1, 1, 2, 32)), True, False, 4)(9, (4, 5))
    finally:
        fused_rows._compiled.cache_clear()
    assert launches == [
        ((7,), (1, 2, 3, 16, "i64", 4, 256, 2, "i16", 64, 16, False, True)),
        ((9,), (4, 5, 4, "i32", 1, 8, 1, "i8", 2, 32, True, False)),
    ]


# -- keys and values -----------------------------------------------------------------------------------------


SLOTS = 40
WIDTHS = {"equal": ((2, 4), (2, 4)), "unequal": ((2, 8), (3, 5)), "one element": ((1, 1), (1, 1))}
DTYPES = [torch.bfloat16, torch.float8_e5m2, torch.float32, torch.int64, torch.complex128, torch.bool]


def random_rows(count: int, width: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Rows of random bits; of random numbers where not all bits are one."""
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (count, width[0], width[1] * dtype.itemsize))
    return bits.to(torch.uint8).view(dtype)


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def make_buffers(
    widths: tuple[tuple[int, int], tuple[int, int]], dtype: torch.dtype
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    k, v = ([random_rows(SLOTS, width, dtype) for _ in range(2)] for width in widths)
    return k, v


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("count", [1, 3, 33])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
def test_one_launch_writes_the_named_rows_of_both(
    plain_kernel: PlainKernel,
    widths: tuple[tuple[int, int], tuple[int, int]],
    dtype: torch.dtype,
    count: int,
    index_dtype: torch.dtype,
) -> None:
    """P3, E5: bit for bit what torch writes, and no other row, of this layer or another."""
    k_buffer, v_buffer = make_buffers(widths, dtype)
    k, v = (random_rows(count, width, dtype) for width in widths)
    index = torch.randperm(SLOTS)[:count]
    expected = [bits_of(buffer).clone() for buffer in (*k_buffer, *v_buffer)]
    expected[1][index], expected[3][index] = bits_of(k), bits_of(v)
    fused = FusedKV(k_buffer, v_buffer)
    assert fused.write(1, index.to(index_dtype), k, v)
    assert len(plain_kernel.launches) == 1
    for buffer, wanted in zip((*k_buffer, *v_buffer), expected, strict=True):
        assert torch.equal(bits_of(buffer), wanted)


@pytest.mark.parametrize("which", ["k", "v"])
def test_rows_out_of_alignment_are_left_to_torch(plain_kernel: PlainKernel, which: str) -> None:
    """P3: nothing is launched for either half."""
    k_buffer, v_buffer = make_buffers(WIDTHS["equal"], torch.float32)
    rows = {"k": torch.randn(3, 2, 4), "v": torch.randn(3, 2, 4)}
    rows[which] = torch.randn(25)[1:].view(3, 2, 4)
    assert not FusedKV(k_buffer, v_buffer).write(0, torch.tensor([1, 2, 3]), rows["k"], rows["v"])
    assert plain_kernel.launches == []


def test_small_batches_can_be_left_to_torch(
    plain_kernel: PlainKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threshold is one number; inside a captured graph it does not count."""
    monkeypatch.setattr(fused_kv, "FEWEST_ROWS", 4)
    k_buffer, v_buffer = make_buffers(WIDTHS["equal"], torch.float32)
    fused = FusedKV(k_buffer, v_buffer)
    rows = torch.randn(4, 2, 4)
    index = torch.arange(4)
    assert not fused.write(0, index[:3], rows[:3], rows[:3])
    assert fused.write(0, index, rows, rows)
    monkeypatch.setattr(fused_kv, "is_capturing", lambda device: True)
    assert fused.write(0, index[:3], rows[:3], rows[:3])
    assert len(plain_kernel.launches) == 2


def test_one_kernel_serves_every_batch_layer_and_index(plain_kernel: PlainKernel) -> None:
    """Numbers are arguments; a new batch size compiles nothing."""
    k_buffer, v_buffer = make_buffers(WIDTHS["unequal"], torch.float16)
    fused = FusedKV(k_buffer, v_buffer)
    for layer, count, dtype in [(0, 1, torch.int32), (1, 7, torch.int64), (0, 39, torch.int32)]:
        k, v = (random_rows(count, width, torch.float16) for width in WIDTHS["unequal"])
        assert fused.write(layer, torch.arange(count, dtype=dtype), k, v)
    assert len(plain_kernel.compiled) == 1
    assert [numbers[1:3] for _, numbers in plain_kernel.launches] == [(1, 1), (7, 1), (39, 1)]


# -- states --------------------------------------------------------------------------------------------------


LAYERS, ROWS = 2, 12
SHAPES = [((2, 4), torch.float32, (3,), torch.bfloat16), ((), torch.float64, (0,), torch.float32)]


def random_states(
    rows: int, shape: tuple[int, ...], dtype: torch.dtype, layers: int = LAYERS
) -> torch.Tensor:
    bits = torch.randint(0, 256, (layers, rows, *shape, dtype.itemsize), dtype=torch.uint8)
    return bits.view(-1).view(dtype).view(layers, rows, *shape)


@pytest.fixture(params=SHAPES, ids=["wide and narrow", "one number and none"])
def states(request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor]:
    first, first_dtype, second, second_dtype = request.param
    return random_states(ROWS, first, first_dtype), random_states(ROWS, second, second_dtype)


def bits_of_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8).reshape(*tensor.shape[:2], -1) if tensor.numel() else tensor


def assert_rows(
    found: tuple[torch.Tensor, ...], expected: list[torch.Tensor], rows: object, content: list[torch.Tensor]
) -> None:
    """Those rows have that content in every layer, and the others what they had."""
    for tensor, wanted, new in zip(found, expected, content, strict=True):
        wanted[:, rows] = new
        assert torch.equal(bits_of_rows(tensor), wanted)


@pytest.mark.parametrize("dtypes", [(torch.int32, torch.int64), (torch.int64, torch.int16)], ids=str)
@pytest.mark.parametrize("count", [1, 5, 8, 9, 12])
def test_rows_may_change_places_within_one_launch(
    plain_kernel: PlainKernel,
    states: tuple[torch.Tensor, torch.Tensor],
    count: int,
    dtypes: tuple[torch.dtype, torch.dtype],
) -> None:
    """P5: all rows are read before one is written, in every layer, bit for bit."""
    fused = FusedStates(*states, within=True)
    before = [bits_of_rows(state).clone() for state in states]
    read = torch.randperm(ROWS)[:count]
    write = read.roll(1)
    assert fused.copy(count, states, read.to(dtypes[0]), states, write.to(dtypes[1]))
    assert len(plain_kernel.launches) == 1
    assert_rows(states, [*map(torch.clone, before)], write, [state[:, read] for state in before])


def test_a_row_that_the_host_knows_needs_no_index(
    plain_kernel: PlainKernel, states: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """P5: a number, or a number and an index, in one launch and nothing else on the device."""
    fused = FusedStates(*states, within=True)
    for read, write in [(3, 5), (3, torch.tensor([7])), (torch.tensor([5], dtype=torch.int32), 0)]:
        before = [bits_of_rows(state).clone() for state in states]
        plain_kernel.launches.clear()
        assert fused.copy(1, states, read, states, write)
        (numbers,) = (numbers for _, numbers in plain_kernel.launches)
        assert (numbers[4], numbers[7]) == tuple(
            0 if isinstance(rows, int) else rows.dtype.itemsize for rows in (read, write)
        )
        assert_rows(
            states, [*map(torch.clone, before)], [int(write)], [state[:, [int(read)]] for state in before]
        )


def test_states_are_copied_between_buffers_of_any_number_of_rows(
    plain_kernel: PlainKernel, states: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """C7: from and to the live states of a context, which may lie apart in a larger buffer."""
    fused = FusedStates(*states, within=False)
    wide = tuple(random_states(2 * ROWS, tuple(state.shape[2:]), state.dtype, layers=4) for state in states)
    live = wide[0][::2, ROWS:], wide[1][::2, ROWS:]
    before = [bits_of_rows(state).clone() for state in states]
    read, write = torch.tensor([11, 0, 3]), torch.tensor([2, 10, 7])
    assert fused.copy(3, live, read, states, write)
    assert_rows(states, before, write, [bits_of_rows(state)[:, read] for state in live])
    assert fused.copy(3, states, write, live, torch.tensor([4, 5, 6]))
    for state, other in zip(states, live, strict=True):
        assert torch.equal(bits_of_rows(other)[:, [4, 5, 6]], bits_of_rows(state)[:, write])
    assert len(plain_kernel.launches) == 2


def test_what_a_launch_cannot_do_is_left_to_torch(plain_kernel: PlainKernel) -> None:
    """P5, C7: rows apart, more rows than a tile can hold, and other buffers that are the same memory."""
    states = random_states(600, (2, 4), torch.float32), random_states(600, (3,), torch.bfloat16)
    within, between = FusedStates(*states, within=True), FusedStates(*states, within=False)
    many = torch.randperm(600)[:513]
    assert not within.copy(513, states, many, states, many.roll(1))
    assert within.copy(512, states, many[:512], states, many[:512].roll(1))
    apart = states[0].transpose(2, 3).contiguous().transpose(2, 3), states[1]
    assert not between.copy(1, apart, 1, states, 2)
    assert not between.copy(1, states, 1, apart, 2)
    assert not within.clear(1, apart, 1)
    assert not between.clear(1, states, 1)
    assert not between.copy(1, (states[0][:, :9], states[1].clone()), 1, states, 2)
    assert not between.copy(1, (states[0].clone(), states[1][:, :9]), 1, states, 2)
    assert len(plain_kernel.launches) == 1
