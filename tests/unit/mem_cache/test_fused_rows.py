"""What the host says in a launch, and when there is none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from pymllm.mem_cache import fused_rows
from pymllm.mem_cache.fused_rows import (
    NO_INDEX,
    FusedRows,
    RowForm,
    as_kernel_index,
    index_of,
    is_capturing,
    make_fused,
    place_of,
)
from tests.unit.mem_cache.plain_kernel import PlainKernel

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


def test_only_a_cuda_stream_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 10: a torch without CUDA is not even asked."""
    assert not is_capturing(CPU)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert is_capturing(CUDA)
    assert not is_capturing(CPU)


def rows_pair(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return aligned(*shape, 2, 4), aligned(*shape, 3, dtype=torch.float64)


def make_rows(tile_words: int = 64, **options: Any) -> FusedRows:
    a, b = rows_pair(2, 5)
    return FusedRows(CPU, (RowForm.of([a], 2), RowForm.of([b], 2)), 2, tile_words=tile_words, **options)


def test_a_kernel_is_compiled_for_each_limit_when_the_rows_are_built(plain_kernel: PlainKernel) -> None:
    """Issue 10: none is compiled later, when a graph may be captured."""
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


def test_more_rows_than_a_tile_can_hold_are_refused(plain_kernel: PlainKernel) -> None:
    """P5: a kernel that cannot read all rows before it writes one is not asked to."""
    rows = make_rows(row_limits=(1, 3))
    a, b = rows_pair(2, 5)
    places = place_of(a, rows.forms[0], 2), place_of(b, rows.forms[1], 2)
    assert None not in places
    assert not rows.move(4, places, NO_INDEX, places, NO_INDEX)  # type: ignore[arg-type]
    assert plain_kernel.launches == []
    assert rows.move(3, places, NO_INDEX, places, NO_INDEX)  # type: ignore[arg-type]
    assert len(plain_kernel.launches) == 1


def test_no_rows_need_no_launch(plain_kernel: PlainKernel) -> None:
    """P3: a grid of no programs is an error on a GPU."""
    place = (0, 0, 0)
    assert make_rows().move(0, (place, place), NO_INDEX, (place, place), NO_INDEX)
    assert plain_kernel.launches == []


def test_kernels_are_for_gpus_unless_asked_for() -> None:
    """Issue 10: a pool on the CPU does not even look for Triton."""

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
    """Issue 10: compiled on CUDA, interpreted on the host, whose memory neither has from the other."""
    triton = SimpleNamespace(knobs=SimpleNamespace(runtime=SimpleNamespace(interpret=interpreted)))
    monkeypatch.setitem(sys.modules, "triton", triton)  # type: ignore[arg-type]
    assert fused_rows._obstacle(torch.device(device)) == obstacle


def test_without_triton_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 10: it is optional everywhere."""
    monkeypatch.setitem(sys.modules, "triton", None)  # type: ignore[arg-type]
    words = str(fused_rows._obstacle(CUDA))
    assert words.startswith("there is no Triton (")
    assert "triton" in words[20:]
    assert make_fused(None, CUDA, lambda: 1) is None


def test_the_kernel_gets_its_shapes_as_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 10: and numbers as arguments; a kernel is made once for like shapes."""
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
    monkeypatch.setitem(sys.modules, "pymllm.mem_cache.row_kernels", kernels)
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


def test_a_kernel_is_loaded_by_a_launch_of_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 10: for its device, and launched there whichever device is the current one."""
    launches: list[tuple[Any, ...]] = []
    warmed: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    entered: list[torch.device] = []

    class Kernel:
        def warmup(self, *arguments: Any, **options: Any) -> Kernel:
            warmed.append((arguments, options))
            return self

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *arguments: launches.append((grid, arguments, len(entered)))

    @contextlib.contextmanager
    def enter(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield

    monkeypatch.setattr(torch.cuda, "device", enter)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    nothing = (1, 0, 1, *[0] * 6, *[1, *[0] * 6] * 2)
    launch = fused_rows._loaded(CUDA, Kernel(), ["constant"], 4)
    assert warmed == [((*nothing, "constant"), {"num_warps": 4, "grid": (1,)})]
    launch(7, (1, 2))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    launch(8, (3, 4))
    assert launches == [
        ((1, 1, 1), (*nothing, "constant"), 1),
        ((7, 1, 1), (1, 2, "constant"), 1),
        ((8, 1, 1), (3, 4, "constant"), 2),
    ]
    assert entered == [CUDA, CUDA]
