"""What cannot be planted says why."""

from __future__ import annotations

from pymllm.adapters.cabinet.unplanted import UNPLANTED


def test_every_reason_is_one_clause() -> None:
    """A reader of the page learns what our classes lack."""
    for id, entry in UNPLANTED.items():
        assert id.startswith("B")
        assert entry.title
        assert len(entry.reason) > 20
        assert not entry.reason.endswith(".")
