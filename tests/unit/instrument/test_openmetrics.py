"""The text for scrapers, as Prometheus' own parser reads it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pymllm.adapters.registry import make_adapter
from pymllm.history.operations import Alloc
from pymllm.instrument.nvml import NvmlTracker
from pymllm.instrument.nvml_record import NvmlRecord
from pymllm.instrument.openmetrics import (
    Family,
    Sample,
    device_families,
    make_text,
    timing_families,
    torch_families,
    write_openmetrics,
)
from pymllm.instrument.reading import BYTES, Reading
from pymllm.instrument.timing import Timing
from pymllm.instrument.torch_memory import TorchMemoryTracker

GAUGE = Family("a_bytes", "gauge", "bytes", "What.", (Sample(5, {"x": "y"}),))


def read(families: Iterable[Family]) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    """What the parser makes of the text, by family."""
    parsed = text_string_to_metric_families(make_text(families))
    return {it.name: [(one.name, one.labels, one.value) for one in it.samples] for it in parsed}


def no_device() -> NvmlRecord:
    with NvmlTracker("GPU-of-nobody") as tracker:
        pass
    return tracker.summary()


def timed() -> Timing:
    ticks = iter([0, 1000, 5000, 9096, 10_000, 10_700])
    timing = Timing(make_adapter("token-slots"), clock=lambda: next(ticks))
    for step, tokens in enumerate((1, 1, -1), 1):
        timing.apply(step, Alloc(tokens))
    return timing


def test_the_parser_reads_what_was_timed() -> None:
    """Counts by bucket, sum and quantiles are those of the histogram; refusals are apart."""
    found = read(timing_families(timed(), {"run": "nightly"}))
    of = {"run": "nightly", "adapter": "token-slots", "operation": "alloc", "result": "done"}
    histogram = {
        (name, labels.get("le")): value
        for name, labels, value in found["pymllm_operation_seconds"]
        if labels["result"] == "done"
    }
    assert histogram["pymllm_operation_seconds_bucket", "1.024e-06"] == 1
    assert histogram["pymllm_operation_seconds_bucket", "4.096e-06"] == 2
    assert histogram["pymllm_operation_seconds_bucket", "+Inf"] == 2
    assert histogram["pymllm_operation_seconds_sum", None] == pytest.approx(5.096e-6)
    longest = found["pymllm_operation_longest_seconds"]
    assert ("pymllm_operation_longest_seconds", of, 4.096e-6) in longest
    assert [labels["result"] for _, labels, _ in longest] == ["refused", "done"]
    shares = [labels["share"] for _, labels, _ in found["pymllm_operation_quantile_seconds"]]
    assert shares == ["0.5", "0.95", "0.99"] * 2


def test_what_is_unknown_has_a_reason_and_no_number() -> None:
    """A machine without a GPU shows no zero on anybody's dashboard."""
    with TorchMemoryTracker() as tracker:
        pass
    found = read([*device_families(no_device()), *torch_families(tracker.summary())])
    assert set(found) == {"pymllm_unknown", "pymllm_device_run_invalid"}
    reasons = [labels for _, labels, _ in found["pymllm_unknown"]]
    assert {"pymllm_device_memory", "pymllm_torch_allocated"} <= {labels["figure"] for labels in reasons}
    assert all(labels["reason"] for labels in reasons)


def test_known_readings_are_in_their_unit() -> None:
    """Bytes end in _bytes; what is known and what is not may stand side by side."""
    record = replace(no_device(), used_start=Reading(7, BYTES), used_peak=Reading(9, BYTES))
    found = read(device_families(record))
    memory = {labels["at"]: value for _, labels, value in found["pymllm_device_memory_bytes"]}
    assert memory == {"start": 7, "peak": 9}
    assert any(labels["at"] == "end" for _, labels, _ in found["pymllm_unknown"])


def test_labels_may_hold_anything() -> None:
    """Names come from users, and reasons from drivers."""
    value = 'back\\slash, "quotes"\nand a line'
    family = replace(GAUGE, samples=(Sample(1, {"x": value}),))
    assert read([family]) == {"a_bytes": [("a_bytes", {"x": value}, 1.0)]}


def test_families_of_one_name_stand_together() -> None:
    """The format forbids a name to come back; several runs can go into one file."""
    other = replace(GAUGE, samples=(Sample(6, {"x": "z"}),))
    between = replace(GAUGE, name="b_bytes")
    assert [value for _, _, value in read([GAUGE, between, other])["a_bytes"]] == [5, 6]
    with pytest.raises(ValueError, match="a_bytes is told twice and differently"):
        make_text([GAUGE, replace(GAUGE, help="Else.")])


def test_nothing_to_tell_is_a_file_all_the_same() -> None:
    """A scraper that finds no file takes the target for dead."""
    assert make_text([replace(GAUGE, samples=())]) == "# EOF\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a-bytes"}, "letters, digits"),
        ({"kind": "counter"}, "one of gauge"),
        ({"unit": "seconds"}, "must end in its unit, _seconds"),
        ({"samples": (Sample(1, {}, "_bucket"),)}, "a gauge has no '_bucket'"),
        ({"samples": (Sample(1, {"x y": ""}),)}, "label 'x y'"),
    ],
)
def test_what_the_format_forbids_is_refused(change: dict[str, object], message: str) -> None:
    """A file that no parser reads is worse than an error where it is made."""
    with pytest.raises(ValueError, match=message):
        replace(GAUGE, **change)  # type: ignore[arg-type]  # wrong on purpose


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """A scraper sees the old file or the new one, and nothing is left beside it."""
    path = tmp_path / "pymllm.prom"
    write_openmetrics(path, [GAUGE])
    write_openmetrics(path, [replace(GAUGE, name="b_bytes")])
    assert path.read_text(encoding="utf-8").endswith("# EOF\n")
    assert "b_bytes" in path.read_text(encoding="utf-8")
    with pytest.raises(FileNotFoundError):
        write_openmetrics(tmp_path / "nowhere" / "x.prom", [GAUGE])
    assert [it.name for it in tmp_path.iterdir()] == ["pymllm.prom"]
