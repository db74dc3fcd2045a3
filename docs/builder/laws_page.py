"""The page of laws: how each is checked, and what breaks it."""

from __future__ import annotations

import re
from itertools import groupby

from sources import ROOT

from pymllm.faults.fault import Fault
from pymllm.faults.table import PLANTED
from pymllm.history.operations import KINDS
from pymllm.oracle.coverage import GOALS
from pymllm.oracle.laws import INVARIANTS, LAWS, Law, Way

__all__ = ["make_laws_page"]

_HEAD = """\
# The laws

An implementation of KV cache memory must keep these {count} laws. The [specification](specification/index.md)
has the whole text of each. Tests, errors and docstrings cite a law by its id, which never changes its
meaning. `pymllm verify` searches for programs that break a law, and reports a law that no program tested as
`UNKNOWN` ([verify.md](verify.md)). Each law is checked in at least two of three ways:

- **from inside**: a check inspects our objects after any step (`pymllm.invariants`, audits of engines);
- **by outcomes**: the oracle compares each outcome with the expected one, for any implementation;
- **by planted faults**: a class is wrong on purpose, and a test or a search must notice
  ([faults.md](faults.md), [faulty.md](faulty.md)).

| line of a law | meaning |
| --- | --- |
| *checked* | the ways of checking; by outcomes in these files of `src/pymllm/oracle/laws` |
| *applies to* | the kinds of implementation; *if claimed*: the capabilities that the law needs |
| *faults* | the planted bugs that it may catch, by their id in [faults.md](faults.md) |
| *wrong implementations* | adapters that break it; try `pymllm verify --adapter NAME` on one |
| *coverage goals* | the number of states that can show a violation ([coverage-goals.md](coverage-goals.md)) |
| *findings* | programs on which another project's cache differs ([findings](../peers/findings/README.md)) |
"""
_TITLES = {
    "every-class": "Every class",
    "slots": "Slots",
    "rows-states-buffers": "Rows, states and buffers",
    "keys-and-hashes": "Keys and hashes",
    "prefixes": "Prefixes",
    "windows": "Windows",
    "recurrent-states": "Recurrent states",
    "blocks": "Blocks",
    "requests": "Requests",
    "block-index": "Block indexes",
}
_WAYS = {
    Way.STRUCTURE: "from inside",
    Way.ORACLE: "by outcomes",
    Way.PLANT: "by planted faults",
}


def make_laws_page() -> str:
    """Return the page as the registry has it."""
    wrong, findings = _wrong_implementations(), _findings()
    parts = [_HEAD.format(count=len(LAWS))]
    for page, laws in groupby(LAWS, key=lambda law: law.page):
        parts.append(f"\n## {_TITLES[page]}\n")
        parts += [_entry(law, wrong, findings) for law in laws]
    return "".join([*parts, _asked_for_by_name()])


def _entry(law: Law, wrong: dict[str, list[str]], findings: dict[str, list[str]]) -> str:
    lines = [
        f"- [full text](specification/{law.page}.md#{law.id.lower()})",
        f"- checked {', '.join(_way(law, way) for way in _WAYS if way in law.ways)}",
        f"- applies to {_kinds(law)}{_claims(law)}",
    ]
    faults = [fault for fault in PLANTED if law.id in fault.laws]
    if faults:
        lines.append(f"- faults: {', '.join(_named(fault) for fault in faults)}")
    goals = sum(law.id in goal.laws for goal in GOALS)
    if law.id in wrong:
        lines.append(f"- wrong implementations: {', '.join(wrong[law.id])}")
    if goals:
        lines.append(f"- coverage goals: {goals}")
    if law.id in findings:
        lines.append(f"- findings: {', '.join(findings[law.id])}")
    return f"\n### {law.id}\n\n**{law.sentence[0].upper()}{law.sentence[1:]}.**\n\n" + "\n".join(lines) + "\n"


def _way(law: Law, way: Way) -> str:
    """Say how a law is checked; of the oracle, in which files of ``src/pymllm/oracle/laws``."""
    modules = sorted({check.__module__.rpartition(".")[2] for *_, check in law.checks})
    files = ", ".join(f"`{module}.py`" for module in modules)
    return f"{_WAYS[way]} ({files})" if way is Way.ORACLE and files else _WAYS[way]


def _kinds(law: Law) -> str:
    if law.kinds == KINDS:
        return "every kind"
    unless = ", unless the cache keeps nothing" if law.is_of_content else ""
    return law.about + unless + (", unless the cache splits no node" if law.is_of_splits else "")


def _claims(law: Law) -> str:
    return f", if claimed: {', '.join(f'`{need}`' for need in sorted(law.needs))}" if law.needs else ""


def _named(fault: Fault) -> str:
    first, second = fault.title[0], fault.title[1]
    return f"{fault.id} ({first if second.isupper() else first.lower()}{fault.title[1:]})"


def _wrong_implementations() -> dict[str, list[str]]:
    """Names by law, from the table of their page: their classes would load torch."""
    text = (ROOT / "docs" / "faulty.md").read_text(encoding="utf-8")
    names: dict[str, list[str]] = {}
    for name, law in re.findall(r"^\| (`faulty-[\w-]+`) \| [^|]* \| (\w+) \|", text, flags=re.MULTILINE):
        names.setdefault(law, []).append(name)
    return names


def _findings() -> dict[str, list[str]]:
    """Links to the findings by law, from the tables of their page, which has one for each project."""
    text = (ROOT / "peers" / "findings" / "README.md").read_text(encoding="utf-8")
    findings: dict[str, dict[str, list[str]]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        project = section.partition("\n")[0]
        rows = re.findall(r"^\| (\[[\w-]+\])\((.+\.md)\) \| ([^|]*) \| (\w+) \|", section, flags=re.MULTILINE)
        for name, page, version, law in rows:
            link = f"{name}(../peers/findings/{page})"
            findings.setdefault(law, {}).setdefault(link, []).append(f"{project} {version}")
    return {
        law: [f"{link} ({', '.join(whose)})" for link, whose in links.items()]
        for law, links in findings.items()
    }


def _asked_for_by_name() -> str:
    rows = [f"| {name} | {', '.join(laws)} |" for name, laws in INVARIANTS.items()]
    head = (
        "\n## Names of invariants\n\nCommon names of invariants, and the laws that together state each.\n\n"
    )
    return head + "\n".join(["| invariant | laws |", "| --- | --- |", *rows]) + "\n"
