"""Good files of every kind, and the commands that read them."""

from __future__ import annotations

import gzip
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from pymllm.adapters.registry import OWN, find_adapter, make_adapter
from pymllm.documents.faults import Detection
from pymllm.errors import InvariantViolation
from pymllm.faults.detection import FaultResult, HuntPlan, HuntTask
from pymllm.faults.hunt import keep_results
from pymllm.faults.table import PLANTED
from pymllm.history.files import Config, Header, History, Step, dump_history, write_history
from pymllm.history.operations import (
    Alloc,
    Evict,
    Free,
    Insert,
    Key,
    Lock,
    Match,
    Operation,
    Reset,
    Span,
    Unlock,
)
from pymllm.machines.examiner import Examiner
from pymllm.machines.registry import DEV
from pymllm.machines.smoke import make_sample
from pymllm.probing.programs import Generator
from pymllm.probing.records import Answer, Cold, Head, Place, asks_of
from pymllm.probing.records import History as ProbeHistory
from pymllm.probing.records import Step as ProbeStep
from pymllm.probing.records import dump_history as dump_probe
from pymllm.replay.served import PlayPlan, Served, ServedHead, digest_of
from pymllm.report.store import write_run
from pymllm.search.kept_searches import keep_searches
from pymllm.search.runner import verify
from pymllm.search.tasks import VerifyPlan
from pymllm.soak.spread_plan import ShardPlan, write_plan
from pymllm.traces.registry import open_trace
from tests.mutated.verbs import run
from tests.unit.oracle.recorded import read_corpus
from tests.unit.report import samples
from tests.unit.report.test_store import EACH
from tests.unit.watching.producer import Producer

EXAMPLES = Path(__file__).parents[2] / "examples"
TRACES = Path(__file__).parents[1] / "unit" / "traces" / "small_traces"
TEXTS = TRACES.with_name("text_traces")
PARTS = TRACES.with_name("ragpulse")
VECTORS = Path(__file__).parents[2] / "vectors" / "v1"
_EACH = 5
"""One in so many programs of the book of verdicts, which are long."""
_WRONG = ("faulty-short-matches", "faulty-row-zero", "faulty-stale-slots", "faulty-durable-hashes")
_TELLER = """\
import sys
with open(sys.argv[1], "rb") as answers:
    for _ in sys.stdin.buffer:
        sys.stdout.buffer.write(answers.readline())
        sys.stdout.buffer.flush()
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of file, good ones of it, and a command, in whose words ``@`` stands for the text of the file.

    Statuses besides 2 are allowed; ``weight`` is how often the case is taken, beside the others. ``beside``
    are good files that lie there, too, by their names.
    """

    verb: str
    files: Sequence[bytes]
    name: str
    words: Sequence[str]
    allowed: Sequence[int]
    weight: int
    beside: Mapping[str, bytes] = field(default_factory=dict)


def make_cases(folder: Path) -> list[Case]:
    """Make the files, in a folder for what commands must write themselves."""
    played = [_lines(dump_history(history)) for history in _play_samples()]
    histories = [*played, *(_lines(dump_history(history)) for history in [*read_corpus().values()][::_EACH])]
    (folder / "good.jsonl").write_bytes(played[-1])
    (folder / "teller.py").write_text(_TELLER, encoding="utf-8")
    good, teller = str(folder / "good.jsonl"), f"{sys.executable} -S -E {folder / 'teller.py'} said.jsonl"
    ledgers, traces = [_ledger(folder)], [_trace()]
    documents = _documents()
    talk = _write_talk(folder / "talk.jsonl")
    rerun, checked = _conversation(folder, f"rerun {talk} --command"), _conversation(folder, "check-protocol")
    stores, kept, searched = _stores(folder), [_kept(folder)], [_searched(folder)]
    configs = [b'{"page_size": 1, "window": null, "pool": "token", "slots": 24, "swa_slots": 0}']
    judged, nothing = (0, 1, 3), (0,)
    merge = ("merge", str(folder / "soaked"))
    found, rare = _merged(folder)
    return [
        Case("judge", histories, "it.jsonl", ("judge", "it.jsonl"), judged, 22),
        Case("judge --json", histories, "it.jsonl", ("judge", "it.jsonl", "--json"), judged, 6),
        Case("rerun", played, "it.jsonl", ("rerun", "it.jsonl"), judged, 18),
        Case("rerun --json", played, "it.jsonl", ("rerun", "it.jsonl", "--json", "--timing"), judged, 4),
        Case("rerun --record", played, "it.jsonl", ("rerun", "it.jsonl", "--record", "new.jsonl"), judged, 2),
        Case("rerun --config", configs, "config", ("rerun", good, "--config", "@"), judged, 4),
        Case("shrink", played, "it.jsonl", ("shrink", "it.jsonl", "--seconds", "0.2"), judged, 6),
        Case(
            "bisect",
            played,
            "it.jsonl",
            ("bisect", "it.jsonl", "--package", "sglang", "--adapter", "nowhere:Index"),
            (130,),
            4,
        ),
        Case("judge of a probe", [_probed()], "it.jsonl", ("judge", "it.jsonl"), judged, 4),
        Case(
            "rerun --command",
            [rerun],
            "said.jsonl",
            ("rerun", str(talk), "--command", teller, "--timeout", "3"),
            judged,
            8,
        ),
        Case(
            "check-protocol",
            [checked],
            "said.jsonl",
            ("check-protocol", teller, "--timeout", "3"),
            (0, 3),
            3,
        ),
        Case(
            "resume",
            ledgers,
            "it/ledger.jsonl",
            ("resume", "it", "--minutes", "0", "--jobs", "1"),
            judged,
            5,
        ),
        Case(
            "resume --executor",
            [_plan(folder)],
            "it/shards.json",
            ("resume", "it", "--executor", f"{__name__}:interrupted", "--progress", "off"),
            (130,),
            3,
        ),
        Case("watch", [_stream()], "it.jsonl", ("watch", "it.jsonl"), judged, 8),
        Case("merge", ledgers, "it/ledger.jsonl", ("merge", "it"), judged, 4),
        Case("merge --baseline", found, "it.json", (*merge, "--baseline", "it.json"), judged, 2),
        Case("merge --corpus", rare, "it/corpus.jsonl", (*merge, "--corpus", "it"), judged, 2),
        Case(
            "report of a ledger",
            ledgers,
            "it/ledger.jsonl",
            ("report", "it", "--format", "badge"),
            nothing,
            3,
        ),
        Case(
            "report of a document", documents, "it.json", ("report", "it.json", "-o", "page.html"), nothing, 4
        ),
        Case(
            "report --format junit",
            documents,
            "it.json",
            ("report", "it.json", "--format", "junit"),
            nothing,
            4,
        ),
        Case(
            "report --format github-action-benchmark",
            [*documents, *stores],
            "it.json",
            ("report", "it.json", "--format", "github-action-benchmark"),
            nothing,
            3,
        ),
        Case(
            "report --trend",
            stores,
            "it.json",
            ("report", "it.json", "--trend", "p99"),
            nothing,
            3,
        ),
        Case("report of a store", stores, "it/x.run.jsonl", ("report", "it", "-o", "page.html"), nothing, 3),
        Case(
            "report of a file of a store",
            stores,
            "x.run.jsonl",
            ("report", "x.run.jsonl", "--format", "badge"),
            nothing,
            4,
        ),
        Case("diff", [*documents, *stores], "it.json", ("diff", "it.json", "it.json"), (0, 3), 3),
        Case(
            "report of a history",
            histories,
            "it.jsonl",
            ("report", "it.jsonl", "--format", "badge"),
            nothing,
            1,
        ),
        Case(
            "vectors run",
            [path.read_bytes() for path in sorted(VECTORS.glob("rows.jsonl"))],
            "it/it.jsonl",
            ("vectors", "run", "--vectors", "it", "--adapter", "rows"),
            judged,
            3,
        ),
        Case(
            "faults hunt --keep", kept, "it.jsonl", ("faults", "hunt", "B01", "--keep", "it.jsonl"), (130,), 3
        ),
        Case("verify --keep", searched, "it.jsonl", _VERIFY_KEPT, (1, 130), 5),
        Case("replay --keep", [_kept_replay(folder)], "it.jsonl", (*_KEPT, "--keep", "it.jsonl"), (0, 1), 3),
        Case(
            "replay",
            traces,
            "it.jsonl",
            ("replay", "it.jsonl", "--capacity", "4k", "--page-size", "16"),
            (0,),
            5,
        ),
        *_cases_of_traces(),
        Case("replay-server --keep", [_answered(folder)], "it.jsonl", _answered_words(folder), (0, 3), 6),
        Case("curve", traces, "it.jsonl", ("curve", "it.jsonl", "--page-size", "16"), (0,), 5),
    ]


def _cases_of_traces() -> Iterator[Case]:
    """Yield every verb that reads a trace, with small ones of every format."""
    small = [path.read_bytes() for path in sorted(TRACES.iterdir()) if not path.name.startswith("text")]
    text = [path.read_bytes() for path in sorted((*TRACES.glob("text*"), *TEXTS.iterdir()))]
    inspect, write = ("trace", "inspect", "it.jsonl"), ("it.jsonl", "-o", "out.jsonl")
    sizes = ("--capacity", "8k", "--page-size", "16")
    for verb, files, words, weight in (
        ("replay of other formats", small, ("replay", "it.jsonl", *sizes), 4),
        ("replay-serial", small, ("replay-serial", "it.jsonl", *sizes), 2),
        ("trace inspect", small, inspect, 6),
        ("trace inspect --json", small, (*inspect, "--json"), 3),
        ("trace inspect --lenient", small, (*inspect, "--lenient"), 3),
        ("trace inspect of text", text, (*inspect, "--format", _WORDS), 6),
        ("trace inspect of arrays", [*map(_as_array, small)], inspect, 4),
        ("trace inspect of gzip", [gzip.compress(it, mtime=0) for it in small], inspect, 3),
        ("curve of other formats", small, ("curve", "it.jsonl", "--page-size", "16"), 4),
        ("trace convert", small, ("trace", "convert", *write, "--to", "bailian"), 3),
        ("trace convert to ours", small, ("trace", "convert", *write), 3),
        ("trace sample --fraction", small, ("trace", "sample", *write, "--fraction", "1"), 2),
        ("trace sample --requests", small, ("trace", "sample", *write, "--requests", "20"), 2),
        ("trace synthesize", small, ("trace", "synthesize", *write, "--requests", "20"), 2),
    ):
        yield Case(verb, files, "it.jsonl", words, (0,), weight)
    folder = ("trace", "inspect", "it")
    for path in (TRACES / f"{name}.jsonl" for name in ("mooncake", "request-trace", "agentic-mooncake")):
        first, *rest = path.read_bytes().splitlines(keepends=True)
        verb, beside = f"trace inspect of a folder, {path.stem}", {"it/a.jsonl": first}
        yield Case(verb, [b"".join(rest)], "it/b.jsonl", folder, (0,), 2, beside)
    parts = {f"it/{path.name}": path.read_bytes() for path in sorted(PARTS.iterdir())}
    for name in ("it/0_trace.jsonl", "it/2_passages.jsonl"):
        beside = {other: data for other, data in parts.items() if other != name}
        yield Case(f"trace inspect of ragpulse, {name}", [parts[name]], name, folder, (0,), 3, beside)


_WORDS = "text,tokenizer=tests.unit.traces.trace_words:encode"


def _as_array(lines: bytes) -> bytes:
    """Return a trace as one JSON array; one that is an object of many lines has one element."""
    try:
        return json.dumps([json.loads(lines)]).encode()
    except ValueError:
        return json.dumps([json.loads(line) for line in lines.splitlines()]).encode()


def _probed() -> bytes:
    """Return a file of a probe: a measurement and a round of a program, answered from nowhere."""
    place = Place(7, ((7, -0.5), (8, -2.0)))
    steps, prompts = list[ProbeStep](), dict[int, tuple[int, ...]]()
    made = Generator(1, longest=40, max_tokens=2, has_salts=True, can_reset=True)
    for operation in (*made.measure(), *made.round(12)):
        for ask in asks_of(operation):
            prompts[ask.id] = (*prompts.get(ask.after or 0, ()), *ask.tokens)
        asked = operation.of if isinstance(operation, Cold) else [ask.id for ask in asks_of(operation)]
        answers = tuple(Answer(prompt=prompts[id], places=(place, place), cached=0) for id in asked)
        steps.append(ProbeStep(operation=operation, answers=answers))
    head = Head(server="pymllm", api="openai", cold="salt", has_salts=True, is_clean=True)
    return dump_probe(ProbeHistory(head, tuple(steps))).encode()


def _play_samples() -> Iterator[History]:
    """Yield what our own classes, and a few that are wrong, do in the simplest programs; radix last."""
    for name in (*(entry.name for entry in OWN), *_WRONG, "radix"):
        adapter = make_adapter(name)
        examiner = Examiner(adapter, seed=1)
        for number, step in make_sample(adapter.kind, adapter.config, adapter.capabilities).items():
            try:
                examiner.do(step.operation, number)
            except InvariantViolation:
                break
        yield examiner.history


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _ledger(folder: Path) -> bytes:
    words = "soak --adapter rows --operations 300 --longest 200 --seed 7 --jobs 1 --output soaked"
    ended = run(words.split(), folder)
    assert ended.status == 0, ended.errors
    return (folder / "soaked" / "ledger.jsonl").read_bytes()


def _plan(folder: Path) -> bytes:
    corpus = (folder / "rare" / "corpus.jsonl").read_text("utf-8")
    plan = ShardPlan(3, 7, ("rows",), ({"max_reqs": 3},), "RowMachine", 900, None, 300, "1/8", None, corpus)
    write_plan(plan, folder / "spread")
    return (folder / "spread" / "shards.json").read_bytes()


class _Interrupted(Executor):
    """Is given a shard, and Ctrl-C comes: what a file says was taken for a campaign, nothing is played."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> NoReturn:
        raise KeyboardInterrupt


def interrupted() -> Executor:
    """Open it."""
    return _Interrupted()


def _merged(folder: Path) -> tuple[list[bytes], list[bytes]]:
    """Return the files that a merge writes: findings and a corpus."""
    for words in (
        "soak --adapter faulty-dirty-rows --operations 600 --longest 200 --seed 7 --jobs 1 --output wrong",
        "merge soaked wrong --output merged --corpus rare",
    ):
        assert run(words.split(), folder).status in (0, 1)
    found, rare = folder / "merged" / "findings.json", folder / "rare" / "corpus.jsonl"
    return [found.read_bytes()], [rare.read_bytes()]


def _verdicts() -> object:
    """Make the document of a search with what it can have."""
    rows = samples.adapter("radix", "prefix", [samples.law("R1", "holds"), samples.law("R6", "violated")])
    return samples.verify({**rows, "violations": [samples.violation("R6")]})


def _stream() -> bytes:
    """Return a recording of cache events."""
    return b"".join(json.dumps(it).encode() + b"\n" for it in Producer(0).messages(12))


def _documents() -> list[bytes]:
    return [json.dumps(make(), indent=1).encode() for make in _MAKERS]


_MAKERS = (
    *(samples.verify, samples.faults, samples.soak, samples.replay, samples.doctor, samples.gpu_memory),
    *(samples.goals, samples.peers, samples.gpu_benchmarks, samples.benchmark_file, _verdicts),
    samples.vectors,
)


def _stores(folder: Path) -> list[bytes]:
    return [write_run(folder / "store", samples.HEADER, EACH).read_bytes()]


def _kept(folder: Path) -> bytes:
    (fault,) = [fault for fault in PLANTED if fault.id == "B01"]
    kept = keep_results(folder / "kept.jsonl")
    found = Detection(0, "R1", "page 3", "machine", "radix", {"page_size": 1}, 20, 0.5, 3)
    kept.keep(HuntTask(fault, HuntPlan((0,))), FaultResult(fault, (found,), ("none",), 1.5))
    return kept.path.read_bytes() * 3


_VERIFY_KEPT = (
    *("verify", "--adapter", "faulty-dirty-rows", "--examples", "12", "--profile", "dev", "--jobs", "1"),
    *("--timeout", "0", "--keep", "it.jsonl"),
)


def _searched(folder: Path) -> bytes:
    """Return what the command above keeps."""
    plan = VerifyPlan((find_adapter("faulty-dirty-rows"),), (), DEV, 0, 12, 0)
    kept = keep_searches(folder / "searched.jsonl", plan)
    verify(plan, kept=kept)
    return kept.path.read_bytes()


_KEPT = ("replay-serial", "adversarial", "--requests", "4")


def _kept_replay(folder: Path) -> bytes:
    """Return a file of results; a broken law would be believed, with status 1."""
    file = folder / "replay.jsonl"
    ended = run([*_KEPT, "--keep", str(file)], folder)
    assert ended.status == 0, ended.errors
    return file.read_bytes()


def _answered_words(folder: Path) -> tuple[str, ...]:
    sizes = ("--capacity", "4k", "--page-size", "16", "--serial")
    return ("replay-server", str(folder / "sent.jsonl"), "http://127.0.0.1:9", *sizes, "--keep", "it.jsonl")


def _answered(folder: Path) -> bytes:
    """Return what a server answered to a trace."""
    (folder / "sent.jsonl").write_bytes(_trace())
    requests = list(open_trace(folder / "sent.jsonl"))
    ids = tuple(range(40, 45))
    its = [Served(it.request_id, 1.0 * n, n + 0.1, n + 0.2, 512, 5, ids) for n, it in enumerate(requests)]
    head = ServedHead(digest_of(requests, PlayPlan(speed=None)))
    return b"".join(msgspec.json.encode(it) + b"\n" for it in (head, *its))


def _trace() -> bytes:
    made = [
        {"timestamp": 100 * n, "input_length": 700 + n, "output_length": 5, "hash_ids": [0, n]}
        for n in range(12)
    ]
    return "".join(json.dumps(line) + "\n" for line in made).encode()


def _write_talk(path: Path) -> Path:
    """Write a program for a prefix cache."""
    key = Key((7, 8, 9, 10), "a")
    operations: list[Operation] = [Alloc(4), Insert(key, (Span(1, 0, 4),)), Match(key), Lock(3), Evict(4)]
    operations += [Unlock(4), Match(Key((7, 8, 1, 1))), Evict(2), Alloc(2), Free((Span(9, 0, 2),)), Reset()]
    config: Config = {"page_size": 2, "window": None, "pool": "token", "slots": 8, "swa_slots": 0}
    steps = [Step(number, operation) for number, operation in enumerate(operations, 1)]
    write_history(History(Header("radix", "prefix", config), steps), path)
    return path


def _conversation(folder: Path, words: str) -> bytes:
    """Return what the example of a program says where a command asks it."""
    program = shlex.join([sys.executable, "-S", str(EXAMPLES / "protocol" / "page_cache.py")])
    said = folder / "said.jsonl"
    ended = run([*words.split(), shlex.join(["sh", "-c", f"{program} | tee {said}"])], folder)
    assert ended.status == 0, ended.errors
    return said.read_bytes()
