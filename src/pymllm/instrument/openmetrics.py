"""The figures of a run as OpenMetrics text, for dashboards.

The format is that of the OpenMetrics specification, version 1.0; Prometheus' own client writes it, and the
textfile collector of its node exporter reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from pymllm.instrument.nvml_record import NvmlRecord
from pymllm.instrument.reading import BYTES, Reading
from pymllm.instrument.timing import Timing
from pymllm.instrument.torch_memory import TorchMemoryRecord
from pymllm.text_file import escaped, write_text_file

# Powers of two in nanoseconds: at them the histogram's counts are exact. From 1 microsecond to 17 seconds.
_BOUNDS = range(10, 35)


@dataclass(frozen=True, slots=True)
class Sample:
    """A line: a number, its labels, and a suffix of the family's name, such as ``"_bucket"``."""

    value: int | float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """Samples with one meaning, whose family name ends in their unit, if they have one."""

    name: str
    kind: str
    unit: str
    help: str
    samples: tuple[Sample, ...]


def make_text(families: Iterable[Family]) -> str:
    """Return families as OpenMetrics text, grouped by name and without empty ones."""
    from prometheus_client import Metric
    from prometheus_client.openmetrics.exposition import generate_latest

    joined: dict[str, Metric] = {}
    for family in families:
        made = Metric(family.name, family.help, family.kind, family.unit)
        metric = joined.setdefault(made.name, made)
        if (metric.type, metric.unit, metric.documentation) != (made.type, made.unit, made.documentation):
            raise ValueError(
                f"{family.name} has two definitions; give its families the same kind, unit and help"
            )
        for sample in family.samples:
            labels = {
                name: "\n".join(map(escaped, value.split("\n"))) for name, value in sample.labels.items()
            }
            metric.add_sample(metric.name + sample.suffix, labels, sample.value)
    written = [metric for metric in joined.values() if metric.samples]
    text: bytes = generate_latest(SimpleNamespace(collect=lambda: written))  # type: ignore[no-untyped-call]
    return text.decode()


def write_openmetrics(path: Path, families: Iterable[Family]) -> None:
    """Write families to a file in an existing folder atomically."""
    write_text_file(path, make_text(families))


def timing_families(timing: Timing, labels: Mapping[str, str] | None = None) -> tuple[Family, ...]:
    """Return durations by operation: histograms, which can be added up, and quantiles, which cannot.

    ``labels`` come beside ``adapter``, ``operation`` and ``result`` (``done`` or ``refused``).
    """
    buckets: list[Sample] = []
    quantiles: list[Sample] = []
    longest: list[Sample] = []
    for (operation, is_done), histogram in sorted(timing.histograms.items()):
        of = {
            **(labels or {}),
            "adapter": timing.name,
            "operation": operation,
            "result": "done" if is_done else "refused",
        }
        buckets += [
            Sample(histogram.at_most(bound), {**of, "le": repr((1 << bound) / 1e9)}, "_bucket")
            for bound in _BOUNDS
        ]
        buckets += [
            Sample(histogram.count, {**of, "le": "+Inf"}, "_bucket"),
            Sample(histogram.total_ns / 1e9, of, "_sum"),
            Sample(histogram.count, of, "_count"),
        ]
        quantiles += [
            Sample(histogram.quantile(share) / 1e9, {**of, "share": str(share)})
            for share in (0.5, 0.95, 0.99)
        ]
        longest.append(Sample(histogram.max_ns / 1e9, of))
    return (
        Family("pymllm_operation_seconds", "histogram", "seconds", "Time in the adapter.", tuple(buckets)),
        Family(
            "pymllm_operation_quantile_seconds",
            "gauge",
            "seconds",
            "Quantiles of the time in the adapter.",
            tuple(quantiles),
        ),
        Family(
            "pymllm_operation_longest_seconds",
            "gauge",
            "seconds",
            "The longest time in the adapter.",
            tuple(longest),
        ),
    )


def device_families(record: NvmlRecord, labels: Mapping[str, str] | None = None) -> tuple[Family, ...]:
    """Return NVML's figures of a run; an unreadable figure becomes a line with the reason."""
    of = {**(labels or {}), "device": "unknown" if record.device is None else record.device.uuid}
    return (
        *_readings(
            "pymllm_device_memory",
            "Memory in use on the device, by all processes.",
            of,
            {"start": record.used_start, "end": record.used_end, "peak": record.used_peak},
        ),
        *_readings(
            "pymllm_device_process_memory",
            "Memory of the device that the driver attributes to this process.",
            of,
            {"start": record.process_start, "end": record.process_end},
        ),
        *_readings(
            "pymllm_device_utilization",
            "Share of the time in which a kernel ran, in per cent.",
            of,
            {"mean": record.utilization_mean, "peak": record.utilization_peak},
        ),
        Family(
            "pymllm_device_run_invalid",
            "gauge",
            "",
            "How many reasons there are not to trust the figures of this run.",
            (Sample(len(record.invalid), of),),
        ),
    )


def torch_families(record: TorchMemoryRecord, labels: Mapping[str, str] | None = None) -> tuple[Family, ...]:
    """Return the counts of torch's allocator in a run; unknown ones as in `device_families`."""
    of = labels or {}
    told: dict[str, dict[str, Reading]] = {
        name: {"start": getattr(record.start, name), "end": getattr(record.end, name)}
        for name in ("allocated", "reserved", "active", "inactive_split")
    }
    for name in ("allocated", "reserved", "active"):
        told[name]["peak"] = getattr(record, f"{name}_peak")
    families: list[Family] = []
    for name, readings in told.items():
        families += _readings(f"pymllm_torch_{name}", f"Bytes of torch's allocator: {name}.", of, readings)
    families += _readings(
        "pymllm_torch_events",
        "Allocations of this run that succeeded only after a retry, or failed.",
        of,
        {"retries": record.alloc_retries, "ooms": record.ooms},
    )
    return tuple(families)


def _readings(
    name: str, text: str, labels: Mapping[str, str], readings: Mapping[str, Reading]
) -> Iterator[Family]:
    """Yield a family of the known readings, and one with reasons for unknown ones."""
    is_bytes = any(reading.unit == BYTES for reading in readings.values())
    known = tuple(
        Sample(reading.value, {**labels, "at": at})
        for at, reading in readings.items()
        if reading.value is not None
    )
    yield Family(f"{name}_bytes" if is_bytes else name, "gauge", "bytes" if is_bytes else "", text, known)
    unknown = tuple(
        Sample(1, {**labels, "figure": name, "at": at, "reason": str(reading.reason)}, "_info")
        for at, reading in readings.items()
        if reading.value is None
    )
    yield Family("pymllm_unknown", "info", "", "Figures that could not be read, and why.", unknown)
