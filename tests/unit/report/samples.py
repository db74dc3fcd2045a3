"""Documents of each kind, as far as a report reads them, and runs that have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pymllm.history.files import Header as HistoryHeader
from pymllm.history.files import Step, dump_header, dump_step
from pymllm.history.operations import Alloc
from pymllm.report.documents import read_document
from pymllm.report.loading import Run
from pymllm.report.records import Curve, Figure, Gpu, Histogram, Machine, RunHeader, make_machine

TIME = "2026-11-21T15:03:11Z"
MACHINE = make_machine(
    "Some Processor", 8, 32 << 30, "Linux x86_64", (Gpu("Some GPU", 80 << 30, "580.1"),), None, "rack 3"
)
HEADER = RunHeader(
    "benchmark",
    "2026-11-21T15:03:11.123Z",
    MACHINE,
    "0.1.0+0123456789ab",
    "ab" * 20,
    True,
    "c0de",
    "pytest benchmarks",
    {"torch": "2.13.0"},
)

PROGRAM = (
    dump_header(HistoryHeader("faulty-x", "rows", {"max_reqs": 1})),
    dump_step(Step(1, Alloc(2))),
)


def law(id: str, verdict: str, tests: int = 7) -> dict[str, Any]:
    return {
        "id": id,
        "sentence": f"sentence of {id}",
        "source": "docs/specification/every-class.md#x1",
        "verdict": verdict,
        "tests": tests,
        "walks": 1,
    }


def violation(law: str, **changes: Any) -> dict[str, Any]:
    return {
        "law": law,
        "message": "row 1 <position 3>",
        "expected": "0",
        "observed": "1",
        "config": {"max_reqs": 1, "window": None},
        "step": 4,
        "steps": 5,
        "program": "run_program('faulty-x')",
        "file": f"runs/faulty-x-{law}-0.jsonl",
        "rerun_shows_it": True,
        "judge_shows_it": True,
        "smallest": True,
        **changes,
    }


def adapter(name: str, kind: str | None, laws: list[Any], **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "verdict": "holds",
        "laws": laws,
        "machines": [
            {
                "name": "RowMachine",
                "programs": 10,
                "steps": 500,
                "seconds": 0.5,
                "steps_per_second": 1000.0,
            }
        ],
        "violations": [],
        "problems": [],
        **changes,
    }


def verify(*adapters: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What ``pymllm verify --json`` prints."""
    return {
        "schema": "pymllm.verify",
        "version": 1,
        "versions": {"pymllm": "0.1.0", "torch": "2.13.0"},
        "profile": "ci",
        "seed": 3,
        "examples": None,
        "jobs": 1,
        "seconds": 1.5,
        "verdict": "holds",
        "interrupted": False,
        "situations": [
            {"name": "the rows are exhausted", "machine": "RowMachine", "times": 12, "unmet": []},
            {"name": "nothing is asked for", "machine": "RowMachine", "times": 0, "unmet": ["rows"]},
        ],
        "adapters": list(adapters)
        or [
            adapter(
                "faulty-x",
                "rows",
                [law("P2", "violated"), law("X4", "unknown", 0)],
                violations=[violation("P2")],
            ),
            adapter("rows", "rows", [law("P2", "holds", 1234), law("X1", "not claimed"), law("X4", "holds")]),
        ],
        **changes,
    }


def detection(seed: int, searcher: str, operations: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "law": "R6",
        "message": "locked",
        "searcher": searcher,
        "adapter": "radix",
        "config": {},
        "operations": operations,
        "seconds": 0.25,
        "program": 3,
    }


def fault(id: str, *detections: dict[str, Any], **changes: Any) -> dict[str, Any]:
    is_caught = bool(detections)
    return {
        "id": id,
        "title": f"title of {id}",
        "laws": ["R6"],
        "caught": is_caught,
        "unlisted": [],
        "operations": 20.0 if is_caught else None,
        "seconds": 0.25 if is_caught else None,
        "program": 3 if is_caught else None,
        "detections": list(detections),
        "problems": [],
        **changes,
    }


def faults(*rows: dict[str, Any]) -> dict[str, Any]:
    """What ``pymllm faults --json`` prints."""
    rows = rows or (fault("B01", detection(0, "machine", 20), detection(1, "sweep", 200)), fault("B02"))
    caught = sum(row["caught"] for row in rows)
    return {
        "schema": "pymllm.faults",
        "version": 1,
        "versions": {"pymllm": "0.1.0"},
        "seeds": [0, 1],
        "jobs": 1,
        "seconds": 2.0,
        "caught": caught,
        "missed": len(rows) - caught,
        "faults": list(rows),
    }


def soak_failure(law: str | None, **changes: Any) -> dict[str, Any]:
    return {
        "runs": 2,
        "config": {"page_size": 1},
        "machine": "PrefixMachine",
        "seed": 77,
        "limit": 100,
        "failure": {"message": "held pages", "expected": "none", "observed": "[1]", "step": 9}
        | ({"law": law}),
        "file": "programs/x-long.jsonl",
        "short": "programs/x-short.jsonl",
        **changes,
    }


def soak(*failures: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What ``pymllm soak --json`` prints."""
    drift = {"measure": "uss", "unit": "bytes", "slope": 12.0, "low": 1.0, "high": 20.0, "bound": 1048576.0,
             "samples": 30, "processes": 1, "verdict": "flat"}  # fmt: skip
    return {
        "schema": "pymllm.soak",
        "version": 1,
        "verdict": "violated" if failures else "holds",
        "interrupted": False,
        "seconds": 60.0,
        "jobs": 1,
        "runs": 9,
        "operations": 144_768,
        "cpu_seconds": 20.0,
        "peak_bytes": 240 << 20,
        "adapters": [
            {
                "name": "radix",
                "kind": "prefix",
                "runs": 9,
                "operations": 144_768,
                "seconds": 20.0,
                "cpu_seconds": 20.0,
                "operations_per_cpu_second": 7238.4,
                "shares": {"adapter": 0.5, "judge": 0.25, "walks": 0.05, "again": 0.05, "driver": 0.15},
                "tests": {"R6": 100, "R7": 0},
                "untested_laws": ["R8"],
                "situations": {"a leaf gains a child": 5},
                "missing_situations": ["a callback raises"],
                "failures": list(failures),
            }
        ],
        "drifts": [drift],
        "conflicts": [],
        **changes,
    }


def time(median: float, p99: float) -> dict[str, float]:
    return {"median_us": median, "p99_us": p99}


def engine_run(capacity: int = 8192, hit_rate: float = 0.64, cache: str = "radix") -> dict[str, Any]:
    return {
        "config": {
            "cache": cache,
            "page_size": 16,
            "capacity": capacity,
            "sliding_window_size": None,
            "seed": 0,
        },
        "requests": 200,
        "finished": 200,
        "retractions": 3,
        "prompt_tokens": 10_000,
        "token_hit_rate": hit_rate,
        "ceiling_hit_rate": 0.8,
        "evicted_tokens": 512,
        "match": time(33.6, 129.0),
        "insert": time(95.4, 382.0),
        "evict": time(0.0, 0.0),
        "lock": time(12.8, 25.1),
        "peak_tokens_stored": 8000,
        "peak_rss_bytes": 300 << 20,
        "wall_seconds": 1.5,
    }


def replay(*runs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What ``pymllm replay --json`` prints, as far as a report reads it."""
    return {
        "schema": "pymllm.replay",
        "version": 1,
        "versions": {"pymllm": "0.1.0"},
        "workload": {"name": "chat", "kind": "named", "requests": 200, "seed": 0},
        "mode": "engine",
        "runs": list(runs) or [engine_run()],
        "violation": None,
        **changes,
    }


def doctor() -> dict[str, Any]:
    """What ``pymllm doctor --json`` prints, as far as a report reads it."""
    return {
        "schema": "pymllm.doctor",
        "version": 1,
        "pymllm": "0.1.0",
        "python": "CPython 3.11.7",
        "platform": "Linux-6.18",
        "processor": "Some Processor",
        "usable_cores": 8,
        "memory": 32 << 30,
        "torch": {"version": "2.13.0", "cuda": None},
        "nvml_reason": "no NVML",
        "nvml_devices": [],
        "packages": {"torch": "2.13.0", "triton": None},
    }


def reading(value: float | None, unit: str = "bytes", reason: str | None = None) -> dict[str, Any]:
    return {"value": value, "unit": unit, "reason": reason if value is None else None}


def gpu_memory(test: str = "tests/test_x.py::test_small", **changes: Any) -> dict[str, Any]:
    """A line of ``pytest --gpu-memory-log``, as far as a report reads it."""
    return {
        "schema": "pymllm.gpu-memory",
        "version": 1,
        "test": test,
        "worker": "main",
        "limit": {"limit": 2 << 30, "outcome": "kept", "found": reading(1 << 30), "by": "tensors"},
        "nvml": {
            "device": {"name": "Some GPU", "uuid": "GPU-1", "driver": "580.1"},
            "reason": None,
            "seconds": 1.5,
            "total": reading(80 << 30),
            "used_start": reading(1 << 30),
            "used_peak": reading(2 << 30),
            "invalid": [],
            "curve": {"times": [0.0, 0.1], "used": [1 << 30, 2 << 30]},
        },
        "torch": {"allocated_peak": reading(1 << 30), "reserved_peak": reading(None, reason="no CUDA")},
        **changes,
    }


def situations() -> dict[str, Any]:
    """What ``pymllm situations --json`` prints."""
    row = {"name": "x", "kind": "rows", "of_engine": False, "laws": ["P2"], "bugs": [], "capabilities": [],
           "configuration": []}  # fmt: skip
    return {"schema": "pymllm.situations", "version": 1, "situations": [row]}


def standing(contender: str, value: float) -> dict[str, Any]:
    return {"contender": contender, "value": value, "samples": 30, "p50": value, "p95": value, "p99": value,
            "longest": value, "facts": {}}  # fmt: skip


def scenario(id: str = "T1a", **changes: Any) -> dict[str, Any]:
    return {
        "id": id,
        "title": "a full hit",
        "unit": "us",
        "statistic": "median",
        "target": 60.0,
        "limit": 20.0,
        "limit_of": "memcmp of the key",
        "code": "c0de",
        "standings": [standing("pymllm", 50.0), standing("sglang", 200.0)],
        "best_peer": "sglang",
        "ratio": {"value": 0.25, "low": 0.24, "high": 0.26, "confidence": 0.95, "rounds": 30},
        "verdict": "ahead",
        "reached": True,
        "accepted": 1.0,
        "because": "",
        **changes,
    }


def peers(*scenarios: dict[str, Any]) -> dict[str, Any]:
    """What ``tox -e bench-peers`` writes."""
    return {
        "schema": "pymllm.peers",
        "version": 1,
        "versions": {"pymllm": "0.1.0"},
        "machine": {
            "processor": "Some Processor",
            "usable_cores": "8",
            "platform": "Linux-6.18-x86_64-with-glibc2.36",
            "gpu_0": "Some GPU, driver 580.1, graphics up to 1980 MHz",
        },
        "clock": "cpu",
        "slice": "quick",
        "seconds": 12.5,
        "contenders": [
            {"name": "pymllm", "package": "pymllm", "version": "0.1.0", "reason": None},
            {"name": "vllm", "package": "vllm", "version": None, "reason": "not installed"},
        ],
        "scenarios": list(scenarios) or [scenario()],
    }  # fmt: skip


def gpu_benchmarks(**changes: Any) -> dict[str, Any]:
    """What ``pytest benchmarks -m gpu --gpu-results`` writes."""
    sampled = {"median_us": 12.0, "low_us": 11.5, "high_us": 12.5, "samples": 30, "times": 100}
    goal = {"what": "of the speed of a copy", "value": 0.9, "bound": 0.85, "is_least": True, "is_met": True}
    missed = {"what": "of torch's time", "value": 1.2, "bound": 1.0, "is_least": False, "is_met": False}
    return {
        "schema": "pymllm.gpu-benchmarks",
        "version": 1,
        "date": "2026-11-21T15:03:11+00:00",
        "commit": f"{'ab' * 20}-dirty",
        "pymllm": "0.1.0+abc",
        "benchmarks": "c0de",
        "machine": {"device": "Some GPU", "driver": "580.1", "torch": "2.13.0", "python": "3.12.1",
                    "memory_bytes": 80 << 30, "cuda": "13.0"},
        "results": [
            {
                "name": "set_kv_buffer",
                "case": {"tokens": 64, "dtype": "bfloat16"},
                "mode": "graph",
                "times": {"ours": sampled, "copy": sampled | {"median_us": 10.0}},
                "gigabytes_per_second": 2500.0,
                "goals": [goal, missed],
            }
        ],
        **changes,
    }  # fmt: skip


def benchmark(median: float = 2e-5, **extra: Any) -> dict[str, Any]:
    noted = {"p50_us": 1.0, "p99_us": 80.0, "nodes": 3, "hit_rate": 0.5, "code": "c0de", "note": "x"}
    stats = {"median": median, "q1": median * 0.9, "q3": median * 1.1, "data": [median, median * 4]}
    return {"fullname": "benchmarks/bench_x.py::test_hit[p1]", "stats": stats, "extra_info": noted | extra}


def benchmark_file(*benchmarks: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What pytest-benchmark saves."""
    return {
        "machine_info": {
            "node": "n",
            "system": "Linux",
            "machine": "x86_64",
            "python_version": "3.11.7",
            "cpu": {"brand_raw": "Some Processor", "count": 8},
        },
        "commit_info": {"id": "ab" * 20, "dirty": True},
        "benchmarks": list(benchmarks) or [benchmark()],
        "datetime": "2026-11-21T17:03:11.5+02:00",
        "version": "5.3.1",
        **changes,
    }


def write(path: Path, *plains: Any) -> Path:
    """Write JSON, a line for each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(plain) + "\n" for plain in plains), encoding="utf-8")
    return path


def run(
    *plains: Any,
    time: str = TIME,
    machine: Machine | None = MACHINE,
    figures: tuple[Figure, ...] = (),
    curves: tuple[Curve, ...] = (),
    histograms: tuple[Histogram, ...] = (),
    **fields: Any,
) -> Run:
    """Make a run of documents and records, as if it had been read."""
    given = {
        "source": f"store/{time}.run.jsonl",
        "identity": f"{time} {[str(plain)[:60] for plain in plains]}",
        "kind": "verify",
        "time": time,
        "machine": machine,
        "documents": tuple(read_document(plain) for plain in plains),
        "figures": figures,
        "curves": curves,
        "histograms": histograms,
        **fields,
    }
    return Run(**given)
