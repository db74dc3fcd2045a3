"""What pytest-benchmark writes, as a run: a machine, a commit, and figures of each benchmark."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from pymllm.report.records import Figure, Histogram, Machine, RunHeader, make_machine

__all__ = ["better_of", "is_benchmark_file", "read_benchmark_file", "unit_of"]

_TIMES = {"ns": "ns", "us": "us", "ms": "ms", "s": "s", "seconds": "s"}
_BUCKETS_PER_DOUBLING = 8
_LOWEST = -160  # a picosecond


def is_benchmark_file(plain: Mapping[str, Any]) -> bool:
    """Tell whether JSON is pytest-benchmark's."""
    return isinstance(plain.get("benchmarks"), list) and isinstance(plain.get("machine_info"), dict)


def read_benchmark_file(plain: Mapping[str, Any]) -> tuple[RunHeader, tuple[Figure | Histogram, ...]]:
    """Read a file of pytest-benchmark.

    Parameters
    ----------
    plain : mapping
        The file, as JSON has it.

    Returns
    -------
    header : RunHeader
        Its machine is the one that the file names; ``extra_info["code"]`` of a benchmark is its code's
        hash.
    records : tuple of Figure and Histogram
        Of each benchmark the median with its quartiles, every number of its ``extra_info`` but the median,
        and a histogram where the file has samples.

    Raises
    ------
    ValueError
        Something is missing or of another type.
    """
    try:
        commit = plain.get("commit_info") or {}
        header = RunHeader(
            kind="benchmark",
            time=_time(str(plain["datetime"])),
            machine=_machine(plain["machine_info"]),
            pymllm=str(plain["machine_info"].get("pymllm", "not recorded")),
            commit=commit.get("id"),
            modified=bool(commit.get("dirty")),
            versions=_versions(plain),
        )
        records = tuple(record for benchmark in plain["benchmarks"] for record in _records(benchmark))
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"no whole file of pytest-benchmark: {type(error).__name__}: {error}") from error
    return header, records


def _time(text: str) -> str:
    """Return UTC; pytest-benchmark's own time has an offset."""
    at = datetime.fromisoformat(text).astimezone(UTC)
    return at.isoformat(timespec="seconds").removesuffix("+00:00") + "Z"


def _machine(info: Mapping[str, Any]) -> Machine:
    cpu = info.get("cpu") or {}
    return make_machine(
        processor=str(cpu.get("brand_raw") or info.get("processor") or info.get("machine")),
        cores=int(cpu.get("count") or 1),
        memory=None,
        system=f"{info['system']} {info['machine']}",
        gpu_reason="the file of pytest-benchmark does not tell",
    )


def _versions(plain: Mapping[str, Any]) -> dict[str, str]:
    info = plain["machine_info"]
    found = {name: info.get(name) for name in ("torch", "numpy", "driver")}
    found |= {"python": info.get("python_version"), "pytest-benchmark": plain.get("version")}
    return {name: str(version) for name, version in found.items() if version is not None}


def _records(benchmark: Mapping[str, Any]) -> Iterator[Figure | Histogram]:
    name, stats = str(benchmark["fullname"]), benchmark["stats"]
    extra = benchmark.get("extra_info") or {}
    code = extra.get("code")
    code = None if code is None else str(code)
    yield Figure(
        f"{name}: median",
        float(stats["median"]),
        "s",
        "smaller",
        low=float(stats["q1"]),
        high=float(stats["q3"]),
        code=code,
        plot=name,
    )
    for key, value in extra.items():
        if not key.startswith("p50") and isinstance(value, int | float) and not isinstance(value, bool):
            yield Figure(f"{name}: {_words(key)}", value, unit_of(key), better_of(key), code=code, plot=name)
    samples = stats.get("data")
    if samples:
        yield _histogram(name, [float(sample) for sample in samples], code)


def unit_of(key: str) -> str:
    """Return the unit that a name such as ``p99_us`` or ``peak_bytes`` ends in; ``""`` where it has none."""
    words = re.split(r"[_ ]", key.lower())
    last = words[-1]
    if "per" in words[1:]:
        return "/".join((words[words.index("per") - 1], _TIMES.get("s" if last == "second" else last, last)))
    return _TIMES.get(last, last if last in ("bytes", "tokens", "operations", "nodes") else "")


def better_of(key: str) -> str | None:
    """Return which way a figure with a name such as ``p99_us`` is better; ``None`` where it is a fact.

    Durations and bytes are better when smaller; what happens per second and what is a rate, when bigger.
    """
    words = re.split(r"[_ ]", key.lower())
    if words[-1] == "rate" or "per" in words[1:]:
        return "bigger"
    return "smaller" if words[-1] in (*_TIMES, "bytes") else None


def _words(key: str) -> str:
    """Leave the unit out of a name: it stands beside the number."""
    words = key.split("_")
    return " ".join(words[:-1] if len(words) > 1 and words[-1] in _TIMES else words)


def _histogram(name: str, samples: list[float], code: str | None) -> Histogram:
    """Count samples in buckets that grow by a tenth each, in microseconds."""
    counts: dict[int, int] = {}
    for sample in samples:
        bucket = _bucket(sample * 1e6)
        counts[bucket] = counts.get(bucket, 0) + 1
    first, last = min(counts), max(counts)
    places = range(first, last + 1)
    return Histogram(
        name,
        "us",
        tuple(round(2 ** (place / _BUCKETS_PER_DOUBLING), 6) for place in places),
        tuple(counts.get(place, 0) for place in places),
        name,
        code,
    )


def _bucket(microseconds: float) -> int:
    """Return the place of the bucket whose end is the first one not below."""
    if microseconds <= 0:
        return _LOWEST
    return max(_LOWEST, math.ceil(math.log2(microseconds) * _BUCKETS_PER_DOUBLING - 1e-9))
