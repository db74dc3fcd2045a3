"""Documents of each kind, as far as a report reads them, and runs that have them."""

from __future__ import annotations

import json
from functools import partial
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


_SAMPLES = (Path(__file__).parent / "samples.json").read_text(encoding="utf-8")
"""What commands print with ``--json``, and what is in it, by name, as far as a report reads it."""


def sample(of: str, /, **changes: Any) -> dict[str, Any]:
    """Return a sample with other fields."""
    found: dict[str, Any] = json.loads(_SAMPLES)[of]
    return found | changes


def law(id: str, verdict: str, tests: int = 7) -> dict[str, Any]:
    return sample("law", id=id, sentence=f"sentence of {id}", verdict=verdict, tests=tests)


def violation(law: str, **changes: Any) -> dict[str, Any]:
    return sample("violation", law=law, file=f"runs/faulty-x-{law}-0.jsonl") | changes


def adapter(name: str, kind: str | None, laws: list[Any], **changes: Any) -> dict[str, Any]:
    return sample("adapter", name=name, kind=kind, laws=laws, **changes)


def verify(*adapters: dict[str, Any], **changes: Any) -> dict[str, Any]:
    wrong, right = [law("P2", "violated"), law("X4", "unknown", 0)], [law("P2", "holds", 1234)]
    right += [law("X1", "not claimed"), law("X4", "holds")]
    both = adapter("faulty-x", "rows", wrong, violations=[violation("P2")]), adapter("rows", "rows", right)
    return sample("verify", adapters=list(adapters or both)) | changes


def release(version: str, package: str = "tree") -> dict[str, str]:
    return {"package": package, "version": version}


def detection(seed: int, searcher: str, operations: int) -> dict[str, Any]:
    return sample("detection", seed=seed, searcher=searcher, operations=operations)


def fault(id: str, *detections: dict[str, Any], **changes: Any) -> dict[str, Any]:
    caught = {"caught": True, "operations": 20.0, "seconds": 0.25, "program": 3} if detections else {}
    return sample("fault", id=id, title=f"title of {id}", detections=list(detections), **caught) | changes


def faults(*rows: dict[str, Any]) -> dict[str, Any]:
    rows = rows or (fault("B01", detection(0, "machine", 20), detection(1, "sweep", 200)), fault("B02"))
    caught = sum(row["caught"] for row in rows)
    return sample("faults", caught=caught, missed=len(rows) - caught, faults=list(rows))


def soak_failure(law: str | None, **changes: Any) -> dict[str, Any]:
    made = sample("soak_failure", **changes)
    made["failure"]["law"] = law
    return made


def soak(*failures: dict[str, Any], **changes: Any) -> dict[str, Any]:
    made = sample("soak", verdict="violated" if failures else "holds")
    made["adapters"][0]["failures"] = list(failures)
    return made | changes


def engine_run(capacity: int = 8192, hit_rate: float = 0.64, cache: str = "radix") -> dict[str, Any]:
    made = sample("engine_run", token_hit_rate=hit_rate)
    made["config"] |= {"cache": cache, "capacity": capacity}
    return made


def replay(*runs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return sample("replay", runs=list(runs) or [engine_run()]) | changes


curve = partial(sample, "curve")
served = partial(sample, "served")
doctor = partial(sample, "doctor")
goals = partial(sample, "situations")
vectors = partial(sample, "vectors")
watch = partial(sample, "watch")
probe = partial(sample, "probe")
gpu_benchmarks = partial(sample, "gpu_benchmarks")


def reading(value: float | None, unit: str = "bytes", reason: str | None = None) -> dict[str, Any]:
    return {"value": value, "unit": unit, "reason": reason if value is None else None}


def gpu_memory(test: str = "tests/test_x.py::test_small", **changes: Any) -> dict[str, Any]:
    return sample("gpu_memory", test=test, **changes)


def standing(contender: str, value: float) -> dict[str, Any]:
    figures = dict.fromkeys(("value", "p50", "p95", "p99", "longest"), value)
    return sample("standing", contender=contender, **figures)


def scenario(id: str = "T1a", **changes: Any) -> dict[str, Any]:
    return sample("scenario", id=id, **changes)


def peers(*scenarios: dict[str, Any]) -> dict[str, Any]:
    return sample("peers", scenarios=list(scenarios) or [scenario()])


def benchmark(median: float = 2e-5, **extra: Any) -> dict[str, Any]:
    made = sample("benchmark")
    made["stats"] = {"median": median, "q1": median * 0.9, "q3": median * 1.1, "data": [median, median * 4]}
    made["extra_info"] |= extra
    return made


def benchmark_file(*benchmarks: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return sample("benchmark_file", benchmarks=list(benchmarks) or [benchmark()]) | changes


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
