"""Print the laws into the pages of the specification: ``python docs/builder/specification.py``.

A page of ``docs/specification`` has text of its own, and a place for each of its laws, between two comments.
What stands there is printed from the registry, which has every law's text once, from the table of planted
faults and from the two programs of each law; a law of whole runs has two counts of one run instead. The page
of all laws, one line a law, is made by `laws_page`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

ROOT = Path(__file__).parents[2]
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))  # also where the package is not installed

from pymllm.errors import InvariantViolation  # noqa: E402
from pymllm.faults.fault import Fault  # noqa: E402
from pymllm.faults.plant import Change, planted  # noqa: E402
from pymllm.faults.table import PLANTED  # noqa: E402
from pymllm.history.claims import CLAIMS  # noqa: E402
from pymllm.history.config_limits import CONFIG_KEYS  # noqa: E402
from pymllm.history.files import History, Step, load_histories  # noqa: E402
from pymllm.oracle.judge import judge_steps  # noqa: E402
from pymllm.oracle.laws import LAWS, Law, find_law  # noqa: E402
from pymllm.oracle.runs import find_contradiction  # noqa: E402
from pymllm.search.program import write_record  # noqa: E402
from pymllm.workloads.engine import Engine, EngineConfig  # noqa: E402
from pymllm.workloads.request import Request  # noqa: E402
from pymllm.workloads.source import TraceSource  # noqa: E402

__all__ = ["FOLDER", "PAGES", "count_run", "law_programs", "make_page", "run_of_law", "verdict_of"]

FOLDER = ROOT / "docs" / "specification"
PAGES = sorted(FOLDER.glob("*.md"))
_PLACE = re.compile(r"(<!-- law (\w+) -->\n).*?(<!-- end of \2 -->\n)", flags=re.DOTALL)
_TITLES = {
    "Why": "Why",
    "Choices": "An implementation may choose",
    "Caller": "The caller owes",
    "Engines": "In the field",
}
_LONGEST = 150
_BREAK = "\n\n"  # before a list


def make_page(text: str) -> str:
    """Return a page with all of its laws as they are now."""
    text = _PLACE.sub(lambda place: f"{place[1]}{_entry(find_law(place[2]))}{place[3]}", text)
    return _TABLE.sub(lambda place: f"{place[1]}{_TABLES[place[2]]()}{place[3]}", text)


def _kinds() -> str:
    """Return the keys of each kind's configurations, and the claims that its implementations can make."""
    parts = []
    for kind, keys in CONFIG_KEYS.items():
        claims = ", ".join(f"`{name}`" for name, one in CLAIMS.items() if kind in one.kinds.split())
        rows = "".join(f"| {line} |\n" for line in keys.strip().splitlines())
        table = (
            f"| key | value | meaning |\n| --- | --- | --- |\n{rows}" if rows else "Nothing is built: `{}`.\n"
        )
        parts.append(f"Kind `{kind}`: {_KINDS[kind]}.\n\n{table}\nClaims: {claims}.\n")
    return "\n".join(parts)


def _claims() -> str:
    """Return every claim, with its kinds and the laws that need the claim."""
    lines = ["| claim | meaning | kinds | laws |", "| --- | --- | --- | --- |"]
    for name, claim in CLAIMS.items():
        text = f"{claim.text} (*2.1*)" if claim.is_new else claim.text
        kinds = "all" if claim.kinds == CLAIMS["refusals"].kinds else claim.kinds.replace(" ", ", ")
        laws = (law.id for law in LAWS if _is_brought_by(law, name, claim.kinds.split()))
        lines.append(f"| `{name}` | {text} | {kinds} | {' '.join(laws)} |")
    return "\n".join(lines) + "\n"


def _is_brought_by(law: Law, claim: str, kinds: list[str]) -> bool:
    """Tell whether a law needs a claim, or names the claim in its text."""
    needs = "|".join(need for kind in (None, *kinds) for need in law.needs_of(kind)).split("|")
    return claim in needs or (not set(kinds).isdisjoint(law.kinds) and f"`{claim}`" in law.demands)


_TABLE = re.compile(r"(<!-- (kinds|claims) -->\n).*?(<!-- end of \2 -->\n)", flags=re.DOTALL)
_TABLES = {"kinds": _kinds, "claims": _claims}
_KINDS = {
    "slots": "an allocator of slots ([slots](slots.md))",
    "rows": "a table with a row for each request ([rows](rows-states-buffers.md))",
    "buffers": "keys and values of each layer ([buffers](rows-states-buffers.md))",
    "states": "recurrent states of each layer ([states](rows-states-buffers.md))",
    "hashes": "keys and hash functions ([keys and hashes](keys-and-hashes.md))",
    "prefix": "a cache ([prefixes](prefixes.md), [windows](windows.md), [states](recurrent-states.md))",
    "blocks": "an allocator of blocks, and the slots of states beside it ([blocks](blocks.md))",
    "requests": "whole requests over blocks ([requests](requests.md))",
    "index": "the blocks that each worker has ([block indexes](block-index.md))",
}


def law_programs(law: Law) -> tuple[History, History]:
    """Read the program that keeps a law and the program that breaks the law."""
    programs = load_histories(FOLDER / "programs" / f"{law.page}.jsonl")
    return programs[f"{law.id}-keeps"], programs[f"{law.id}-breaks"]


def verdict_of(history: History) -> InvariantViolation | None:
    """Judge a program by its outcomes alone."""
    _, broken = judge_steps(history.header, history.steps)
    return broken[1] if broken else None


def _entry(law: Law) -> str:
    sections = law.sections
    parts = [f"### {law.id}", f"**{law.text.partition(chr(10))[0]}**", _about(law), law.demands]
    for name, title in _TITLES.items():
        text = sections[name]
        parts.append(f"*{title}.*{_BREAK if text.startswith('- ') else ' '}{text}")
        if name == "Why" and (shown := _shown_by(law)):
            parts.append(shown)
    parts.append(_programs(law))
    return "\n\n".join(parts) + "\n"


def _about(law: Law) -> str:
    claims = ", ".join(f"`{need}`".replace("|", "` or `") for need in sorted(law.needs))
    return f"Of {law.about}; " + (f"claimed with {claims}." if claims else "claimed by all of them.")


def _shown_by(law: Law) -> str:
    faults = [fault for fault in PLANTED if law.id in fault.laws]
    return f"Bugs that showed it: {', '.join(map(_linked, faults))}." if faults else ""


def _linked(fault: Fault) -> str:
    return f"[{fault.id}](../faults.md#{fault.id.lower()})"


def run_of_law(law: Law) -> dict[str, Any]:
    """Read the run of a law of whole runs: sizes, requests, and what keeps and what breaks the law."""
    run: dict[str, Any] = json.loads((FOLDER / "runs" / f"{law.id}.json").read_text(encoding="utf-8"))
    return run


_COUNTERS = (
    *("requests", "finished", "rejected", "aborted", "retractions"),
    *("prompt_tokens", "hit_tokens", "ceiling_tokens"),
    *("computed_tokens", "recomputed_tokens", "uncomputed_tokens", "output_tokens"),
)


def count_run(run: dict[str, Any], changes: Sequence[Change] = ()) -> dict[str, int]:
    """Play such a run with the simulated engine, perhaps with changes of its code; return its counters."""
    requests = [Request(number, 0.0, **each) for number, each in enumerate(run["requests"])]
    with planted(changes):
        engine = Engine(EngineConfig(**run["config"]), TraceSource(requests))
        while engine.step():
            pass
        report = engine.report()
    return {name: getattr(report, name) for name in _COUNTERS}


def _run(law: Law) -> str:
    run = run_of_law(law)
    lines = [f"engine: {', '.join(f'{key} {value}' for key, value in run['config'].items())}"]
    for number, each in enumerate(run["requests"]):
        told = ", ".join(f"{key} {value}" for key, value in each.items())
        lines.append(f"request {number}: {told}")
    for verb in ("keeps", "breaks"):
        told = ", ".join(f"{name}={value}" for name, value in run[verb].items())
        lines += wrap(told, _LONGEST - 20, initial_indent=f"   {verb:<6} -> ", subsequent_indent=" " * 13)
    wrong = find_contradiction(run["breaks"])
    assert wrong is not None
    lines.append(f"{law.id}: {wrong.what}: expected {wrong.expected}, observed {wrong.observed}")
    return (
        f"*A run* ([{law.id}.json](runs/{law.id}.json)); what breaks the law is counted with "
        f"[{run['fault']}](../faults.md#{run['fault'].lower()}).\n\n```text\n" + "\n".join(lines) + "\n```"
    )


def _programs(law: Law) -> str:
    if law.is_of_runs:
        return _run(law)
    kept, broken = law_programs(law)
    config = ", ".join(f"{key} {value}" for key, value in kept.header.config.items())
    lines = [f"{kept.header.kind}: {config}"]
    for good, bad in zip(kept.steps, broken.steps, strict=True):
        lines.append(f"{good.number}: {write_record(good.operation)}")
        if good.outcome == bad.outcome:
            lines.append(f"   -> {_outcome(good)}")
        else:
            lines += [f"   keeps  -> {_outcome(good)}", f"   breaks -> {_outcome(bad)}"]
    told = verdict_of(broken)
    if told is not None:
        lines.append(f"{told.law}: {told.message}: expected {told.expected}, observed {told.observed}")
    names = f"`{law.id}-keeps`, `{law.id}-breaks`"
    return (
        f"*Programs* ({names} of [{law.page}.jsonl](programs/{law.page}.jsonl)).\n\n```text\n"
        + "\n".join(map(_cut, lines))
        + "\n```"
    )


def _outcome(step: Step) -> str:
    assert step.outcome is not None
    effects = [write_record(effect) for effect in step.outcome.effects]
    return ", ".join([write_record(step.outcome.result), *effects, *_sizes(step)])


def _sizes(step: Step) -> list[str]:
    assert step.outcome is not None
    sizes = ", ".join(f"{name}={value}" for name, value in step.outcome.sizes.items() if value)
    return [f"({sizes})"] if sizes else []


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(make_page(page.read_text(encoding="utf-8")), encoding="utf-8")
