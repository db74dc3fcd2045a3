"""What pytest-benchmark writes, as a run: a machine, a commit, and figures of each benchmark."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from pymllm.report.documents import GpuMachine
from pymllm.report.records import Figure, Gpu, Histogram, Machine, RunHeader, make_machine

_TIMES = {"ns": "ns", "us": "us", "ms": "ms", "s": "s", "seconds": "s"}
_BUCKETS_PER_DOUBLING = 8
_LOWEST = -160  # a picosecond


def is_benchmark_file(plain: Mapping[str, Any]) -> bool:
    """Tell whether JSON is pytest-benchmark's."""
    return isinstance(plain.get("benchmarks"), list) and isinstance(plain.get("machine_info"), dict)


def read_benchmark_file(plain: Mapping[str, Any]) -> tuple[RunHeader, tuple[Figure | Histogram, ...]]:
    """Read a file of pytest-benchmark; `ValueError` where something is missing or of another type.

    The machine is the one that the file names; ``extra_info["code"]`` of a benchmark is its code's hash. Of
    each benchmark there are the median with its quartiles, every number of its ``extra_info`` but the median,
    and a histogram where the file has samples.
    """
    try:
        commit = plain.get("commit_info") or {}
        header = RunHeader(
            kind="benchmark",
            time=time_of(str(plain["datetime"])),
            machine=machine_of(plain["machine_info"]),
            pymllm=str(plain["machine_info"].get("pymllm", "not recorded")),
            commit=commit.get("id"),
            modified=bool(commit.get("dirty")),
            versions=_versions(plain),
        )
        records = tuple(record for benchmark in plain["benchmarks"] for record in _records(benchmark))
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"no whole file of pytest-benchmark: {type(error).__name__}: {error}") from error
    return header, records


def time_of(text: str) -> str:
    """Return a time with an offset, such as pytest-benchmark's, as that of a run, in UTC."""
    at = datetime.fromisoformat(text).astimezone(UTC)
    return at.isoformat(timespec="seconds").removesuffix("+00:00") + "Z"


def machine_of(info: Mapping[str, Any]) -> Machine:
    """Read a machine off what pytest-benchmark knows of it, and off what benchmarks/conftest.py adds.

    That is ``processor``, ``usable_cores``, and ``gpu_0`` and so on.
    """
    cpu = info.get("cpu") or {}
    is_told = "usable_cores" in info
    processor = info.get("processor") if is_told else cpu.get("brand_raw")
    gpus = sorted(key for key in info if re.fullmatch(r"gpu_\d+", key))
    return make_machine(
        processor=str(processor or info.get("processor") or info.get("machine")),
        cores=int(info.get("usable_cores") or cpu.get("count") or 1),
        memory=None,
        system=_system(info),
        gpus=tuple(_gpu(str(info[key])) for key in gpus if not str(info[key]).startswith("unknown")),
        gpu_reason=None if gpus else str(info.get("nvml", "the file does not tell")),
        name=info.get("machine_name"),
    )


def machine_of_gpu(told: GpuMachine) -> Machine:
    """Return what the results of a GPU's benchmarks tell of their machine: the GPU."""
    gpu = Gpu(told.device, told.memory_bytes, told.driver)
    return make_machine("not recorded", 0, None, "not recorded", (gpu,))


def _gpu(told: str) -> Gpu:
    """Read a GPU off a line such as "Some GPU, driver 580.1, graphics up to 1980 MHz"."""
    found = re.fullmatch(r"(.+?)(?:, driver ([^,]+).*)?", told)
    assert found is not None  # it matches everything
    return Gpu(found[1], None, found[2])


def _system(info: Mapping[str, Any]) -> str:
    """Return system and architecture, which a platform has in its name: Linux-6.18-x86_64-with-glibc2.36."""
    if "system" in info and "machine" in info:
        return f"{info['system']} {info['machine']}"
    platform = str(info.get("platform", "unknown"))
    architecture = re.search(r"-([^-]+)-with-", platform)
    return f"{platform.split('-')[0]} {architecture[1] if architecture else ''}".strip()


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
