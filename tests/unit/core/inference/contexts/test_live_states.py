"""Live states as a context keeps them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts import live_states
from pymllm.core.inference.contexts.live_states import LiveStates, as_state, as_state_shape
from pymllm.errors import UsageError

CONV, SSM = torch.zeros(2, 5, 3), torch.zeros(2, 5, 2, 2)


def make_live(table: Any, conv: torch.Tensor = CONV, ssm: torch.Tensor = SSM) -> LiveStates:
    context = SimpleNamespace(
        mamba_conv_states=conv,
        mamba_ssm_states=ssm,
        mamba_metadata=SimpleNamespace(request_to_mamba_state_idx=table),
    )
    return LiveStates(context, torch.zeros(2, 7, 3), torch.zeros(2, 7, 2, 2))


@pytest.mark.parametrize("table", [[4, 0, -1, 5], (4, 0, -1, 5), np.array([4, 0, -1, 5], np.int16)])
def test_rows_are_looked_up_in_any_table(table: Any) -> None:
    """Specification, blocks: a context may keep it as it likes; X1: a request may have no state."""
    live = make_live(table)
    assert live.rows([1, 0]).tolist() == [0, 4]
    assert live.rows([]).tolist() == []
    for request in (2, 3):
        with pytest.raises(UsageError, match=f"request {request} has no live state"):
            live.rows([1, request])
    with pytest.raises(IndexError, match=r"outside 0\.\.3"):
        live.rows([4])


@pytest.mark.gpu
def test_a_table_on_a_gpu_is_not_waited_for() -> None:
    """Issue 5: no synchronisation; the lookup happens where the table is."""
    conv, ssm = CONV.cuda(), SSM.cuda()
    context = SimpleNamespace(
        mamba_conv_states=conv,
        mamba_ssm_states=ssm,
        mamba_metadata=SimpleNamespace(
            request_to_mamba_state_idx=torch.tensor([4, 0], dtype=torch.int32, device="cuda")
        ),
    )
    live = LiveStates(context, conv, ssm)
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows = live.rows([1, 0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert rows.tolist() == [0, 4]
    assert rows.dtype is torch.int64


def test_a_table_elsewhere_is_read_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 5: the requests go to the table, and their rows to the states; nothing comes to the host."""
    sent: list[tuple[list[int], str]] = []

    def send(numbers: Any, device: torch.device) -> torch.Tensor:
        sent.append((numbers.tolist(), device.type))
        return torch.empty(len(numbers), dtype=torch.int64, device=device)

    monkeypatch.setattr(live_states, "row_index", send)
    table = torch.empty(4, dtype=torch.int32, device="meta")
    context = SimpleNamespace(mamba_metadata=SimpleNamespace(request_to_mamba_state_idx=table))
    rows = LiveStates(context, CONV.to("meta"), SSM.to("meta")).rows([1, 0, 3])
    assert isinstance(rows, torch.Tensor)
    assert (rows.shape, rows.dtype, rows.device.type) == ((3,), torch.int64, "meta")
    assert sent == [([1, 0, 3], "meta")]


def test_rows_of_states_go_where_the_states_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 5: the table may be on another device than they are; a table that says so stands in for it."""
    moved: list[tuple[Any, ...]] = []

    class Table(torch.Tensor):
        device = torch.device("cuda", 1)

        def index_select(self, dim: int, index: Any) -> Any:
            return SimpleNamespace(to=lambda *where: moved.append((dim, index, *where)))

    monkeypatch.setattr(live_states, "row_index", lambda numbers, device: (numbers.tolist(), str(device)))
    table = torch.zeros(4, dtype=torch.int32).as_subclass(Table)
    context = SimpleNamespace(mamba_metadata=SimpleNamespace(request_to_mamba_state_idx=table))
    LiveStates(context, CONV, SSM).rows([2, 1])
    assert moved == [(0, ([2, 1], "cuda:1"), torch.device("cpu"), torch.int64)]


def test_buffers_are_the_contexts() -> None:
    """X5: shared by design."""
    conv, ssm = make_live([0]).buffers()
    assert conv is CONV
    assert ssm is SSM


@pytest.mark.parametrize(
    "wrong",
    [{"conv": CONV.half()}, {"conv": CONV[:1]}, {"ssm": SSM[..., :1]}, {"ssm": SSM.double()}],
)
def test_states_of_another_form_are_refused(wrong: dict[str, torch.Tensor]) -> None:
    """C7: a copy that casts or broadcasts would not be exact."""
    with pytest.raises(ValueError, match="only the rows may differ"):
        make_live([0], **wrong).buffers()


@pytest.mark.parametrize("wrong", [{"conv": None}, {"ssm": SSM.tolist()}, {"ssm": SSM.numpy()}])
def test_states_that_are_no_tensors_are_refused(wrong: dict[str, Any]) -> None:
    """X1: a context of attention alone has none."""
    with pytest.raises(TypeError, match="_states must be a tensor, got"):
        make_live([0], **wrong).buffers()


@pytest.mark.parametrize(
    ("shape", "expected"), [((), ()), ([2, 3], (2, 3)), (torch.Size([4]), (4,)), ((np.int32(2),), (2,))]
)
def test_a_shape_is_any_sequence_of_sizes(shape: Any, expected: tuple[int, ...]) -> None:
    """Reference: a tuple; one number is the shape ()."""
    assert as_state_shape("shape", shape) == expected


@pytest.mark.parametrize(("shape", "error"), [(3, TypeError), ("3", TypeError), ((0,), ValueError)])
def test_what_is_no_shape_is_refused(shape: Any, error: type[Exception]) -> None:
    """X1."""
    with pytest.raises(error, match="shape must be"):
        as_state_shape("shape", shape)


def test_a_state_is_read_as_bits() -> None:
    """C7: a conjugate that is only a mark is carried out first."""
    cached = torch.zeros(1, 1, 2, dtype=torch.complex64)
    state = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert as_state("state", state, cached).view(torch.complex64).tolist() == [1 - 2j, 3 + 4j]


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ([0.0, 0.0], TypeError),
        (torch.zeros(2, dtype=torch.float64), TypeError),
        (torch.zeros(2).to_sparse(), TypeError),
        (torch.zeros(1), ValueError),
        (torch.zeros(1, 2), ValueError),
    ],
)
def test_nothing_is_cast_or_broadcast(state: Any, error: type[Exception]) -> None:
    """C7, X1."""
    with pytest.raises(error, match="state"):
        as_state("state", state, torch.zeros(1, 1, 2))
