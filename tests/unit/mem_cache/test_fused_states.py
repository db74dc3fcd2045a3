"""One launch for the states of all layers, against torch's four."""

from __future__ import annotations

import pytest
import torch

from pymllm.mem_cache import fused_states
from pymllm.mem_cache.fused_rows import as_kernel_index
from pymllm.mem_cache.fused_states import FusedStates
from tests.unit.mem_cache.plain_kernel import PlainKernel

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


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8).reshape(*tensor.shape[:2], -1) if tensor.numel() else tensor


def assert_rows(
    found: tuple[torch.Tensor, ...], expected: list[torch.Tensor], rows: object, content: list[torch.Tensor]
) -> None:
    """Those rows have that content in every layer, and the others what they had."""
    for tensor, wanted, new in zip(found, expected, content, strict=True):
        wanted[:, rows] = new
        assert torch.equal(bits_of(tensor), wanted)


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
    before = [bits_of(state).clone() for state in states]
    read = torch.randperm(ROWS)[:count]
    write = read.roll(1)
    assert fused.copy(count, states, read.to(dtypes[0]), states, write.to(dtypes[1]))
    assert len(plain_kernel.launches) == 1
    assert_rows(states, [*map(torch.clone, before)], write, [state[:, read] for state in before])


@pytest.mark.parametrize(("within", "launches"), [(True, 5), (False, 1)])
def test_only_rows_of_one_pool_are_read_before_they_are_written(
    plain_kernel: PlainKernel, within: bool, launches: int
) -> None:
    """P5: a kernel for each size of a tile that holds all rows, one for zeros; else one that holds none."""
    states = random_states(ROWS, (2, 4), torch.float32), random_states(ROWS, (3,), torch.bfloat16)
    FusedStates(*states, within=within)
    ordered = [is_ordered for _, _, is_ordered, _ in plain_kernel.compiled]
    clears = [is_clear for _, is_clear, _, _ in plain_kernel.compiled]
    rows = [shapes[0][2] for shapes, _, _, _ in plain_kernel.compiled]
    assert len(plain_kernel.compiled) == launches
    assert ordered == [False, True, True, True, False][:launches]
    assert clears == [False, False, False, False, True][:launches]
    assert rows[:4] == [1, 8, 64, 512] if within else rows == [1024]


def test_indices_go_where_the_rows_are(plain_kernel: PlainKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: of what is read, of what is written, and of what is cleared."""
    asked: list[tuple[list[int], str]] = []

    def send(rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        asked.append((rows.tolist(), str(device)))
        return as_kernel_index(rows, device)

    monkeypatch.setattr(fused_states, "as_kernel_index", send)
    states = random_states(ROWS, (2, 4), torch.float32), random_states(ROWS, (3,), torch.bfloat16)
    fused = FusedStates(*states, within=True)
    fused.copy(1, states, torch.tensor([2]), states, torch.tensor([3]))
    fused.clear(1, states, torch.tensor([4]))
    assert asked == [([2], "cpu"), ([3], "cpu"), ([4], "cpu")]


def test_a_row_that_the_host_knows_needs_no_index(
    plain_kernel: PlainKernel, states: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """P5: a number, or a number and an index, in one launch and nothing else on the device."""
    fused = FusedStates(*states, within=True)
    for read, write in [(3, 5), (3, torch.tensor([7])), (torch.tensor([5], dtype=torch.int32), 0)]:
        before = [bits_of(state).clone() for state in states]
        plain_kernel.launches.clear()
        assert fused.copy(1, states, read, states, write)
        (numbers,) = (numbers for _, numbers in plain_kernel.launches)
        assert (numbers[4], numbers[7]) == tuple(
            0 if isinstance(rows, int) else rows.dtype.itemsize for rows in (read, write)
        )
        assert_rows(
            states, [*map(torch.clone, before)], [int(write)], [state[:, [int(read)]] for state in before]
        )


def test_rows_are_cleared_in_one_launch(
    plain_kernel: PlainKernel, states: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """P5: zeros in exactly those rows, named twice or not."""
    fused = FusedStates(*states, within=True)
    before = [bits_of(state).clone() for state in states]
    assert fused.clear(3, states, torch.tensor([4, 1, 4], dtype=torch.int32))
    assert fused.clear(1, states, 9)
    assert len(plain_kernel.launches) == 2
    assert_rows(states, before, [1, 4, 9], [torch.zeros_like(state[:, :3]) for state in before])


def test_states_are_copied_between_buffers_of_any_number_of_rows(
    plain_kernel: PlainKernel, states: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """C7: from and to the live states of a context, which may lie apart in a larger buffer."""
    fused = FusedStates(*states, within=False)
    wide = tuple(random_states(2 * ROWS, tuple(state.shape[2:]), state.dtype, layers=4) for state in states)
    live = wide[0][::2, ROWS:], wide[1][::2, ROWS:]
    before = [bits_of(state).clone() for state in states]
    read, write = torch.tensor([11, 0, 3]), torch.tensor([2, 10, 7])
    assert fused.copy(3, live, read, states, write)
    assert_rows(states, before, write, [bits_of(state)[:, read] for state in live])
    assert fused.copy(3, states, write, live, torch.tensor([4, 5, 6]))
    for state, other in zip(states, live, strict=True):
        assert torch.equal(bits_of(other)[:, [4, 5, 6]], bits_of(state)[:, write])
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
