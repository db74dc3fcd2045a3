"""Change the code at random places and see the tests fail: ``python tests/meta/mutation.py``.

mutmut makes the mutants of history/, oracle/, mem_cache/ and core/. A sample of them, drawn from a named
seed, meets those unit tests of these rooms and state machines that enter the changed function, the nearest
first. The score is printed with every survivor that mutants_explained.json does not explain: it is
equivalent, or nobody could tell the difference.

What is explained there is not tried: to find nobody takes every test that enters the function.

With --keep each result is kept at once, and a later call goes on there: what was noticed stays noticed, and
what nobody noticed is tried again once the package or its tests are others. With --shard, too, each of
several machines tries a part of the sample; the same call without it, with all lines in one file, tells the
whole.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import hashlib
import json
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).parents[2]
if "pymllm" not in sys.modules:  # the package of this tree, whatever is installed: tests enter that one
    sys.path.insert(0, str(ROOT / "src"))

from mutant_results import Results, digest_sources  # noqa: E402
from mutant_runs import run_all  # noqa: E402
from mutants import Change, make_mutants, read_mutant  # noqa: E402

from pymllm.errors import UsageError  # noqa: E402
from pymllm.work.shards import read_shard  # noqa: E402

EXPLAINED = Path(__file__).with_name("mutants_explained.json")
ROOMS = ("history", "oracle", "mem_cache", "core")
GOAL = 0.9
_STRICT = re.compile(r",\s*strict=(True|False|None)")

_PAGE = """\
# Mutation

Do the tests notice a mistake in `history/`, `oracle/`, `mem_cache/` and `core/`? mutmut {version} makes small
mistakes on purpose, one at a time: another operator, number, text or argument. A mistake counts as noticed if
a test that enters the changed function (a unit test of these rooms, or a state machine) fails, or takes more
than five times its processor time. A sample of {size} out of {total} mistakes, drawn from the seed `{seed}`:

**{score}.** The goal is {goal:.0%} of those that can be noticed.

The table lists the mistakes of the sample that no test noticed. Those with a reason, which
`tests/meta/mutants_explained.json` has, were not tried.
`python tests/meta/mutation.py --sample {size} --page docs/mutation.md` writes this page. Several machines,
such as the jobs of a matrix, share the work; their lines in one file give the whole result:

```text
python tests/meta/mutation.py --sample {size} --shard $I/8 --keep $I.jsonl   # on eight machines, I in 1..8
cat ?.jsonl > all.jsonl
python tests/meta/mutation.py --sample {size} --keep all.jsonl --page docs/mutation.md
```

The last command tries only missing mistakes. An unnoticed mistake is tried again only after the package or
its tests have changed. `PYMLLM_SHARD=$I/8` is the same as `--shard`, and `--shard env` reads the variables of
Slurm or GitLab. The same command continues after an interruption.

| function | was | became | why no test noticed it |
| --- | --- | --- | --- |
"""


class Mutant(NamedTuple):
    """A change of a function: its place, the old text and the new text."""

    function: str
    old: str
    new: str


class Score(NamedTuple):
    """The number of noticed mutants of a sample, and the unnoticed mutants, with and without a reason."""

    killed: int
    explained: tuple[Mutant, ...]
    survived: tuple[Mutant, ...]

    @property
    def share(self) -> float:
        """Return the share of killed mutants among the mutants that could be killed."""
        return self.killed / max(self.killed + len(self.survived), 1)


def explain() -> dict[Mutant, str]:
    """Read the reasons of the mutants that no test can kill."""
    rows = json.loads(EXPLAINED.read_text(encoding="utf-8"))
    return {Mutant(row["function"], row["old"], row["new"]): row["reason"] for row in rows}


def reason_of(mutant: Mutant, reasons: Mapping[Mutant, str]) -> str | None:
    """Return the reason why no test can kill a mutant, where a reason is known."""
    if _STRICT.sub("", mutant.old) == _STRICT.sub("", mutant.new):
        return "what is zipped is equally long by construction: strict says so to a reader"
    return reasons.get(mutant)


def find_stale(reasons: Iterable[Mutant]) -> list[Mutant]:
    """Return what was explained once and has been rewritten since."""
    return [mutant for mutant in reasons if "".join(mutant.old.split()) not in _code_of(mutant.function)]


def _code_of(function: str) -> str:
    """Return a function's code without spaces; nothing where it is gone."""
    parts = function.split(".")
    for count in (len(parts) - 1, len(parts) - 2):
        path = ROOT.joinpath("src", *parts[:count]).with_suffix(".py")
        if path.is_file():
            scope: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
            for name in parts[count:]:
                scope = [
                    it for up in scope for it in ast.iter_child_nodes(up) if getattr(it, "name", "") == name
                ]
            return "".join("".join(map(ast.unparse, scope)).split())
    return ""


def sample(names: Sequence[str], seed: str, count: int) -> list[str]:
    """Draw mutants so that those of a function, and their known results, stay while other mutants change."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())[:count]


def score(changes: dict[str, Change], noticed: dict[str, str]) -> Score:
    """Sum up the results of a sample of changes; ``noticed`` has the noticing test of each, or nothing."""
    reasons = explain()
    found = [Mutant(it.function, it.old, it.new) for name, it in changes.items() if not noticed[name]]
    explained = tuple(mutant for mutant in found if reason_of(mutant, reasons) is not None)
    survived = tuple(mutant for mutant in found if reason_of(mutant, reasons) is None)
    return Score(len(changes) - len(found), explained, survived)


def sum_up(found: Score) -> str:
    """Say the score in one line."""
    return (
        f"{found.killed} noticed, {len(found.survived)} not noticed, "
        f"{len(found.explained)} that no test can notice: "
        f"{found.share:.1%}"
    )


def make_page(found: Score, seed: str, size: int, total: int) -> str:
    """Lay the score out as the page docs/mutation.md."""
    reasons = explain()
    rows: list[tuple[Mutant, str | None]] = [(mutant, "nobody knows yet") for mutant in found.survived]
    rows += [(mutant, reason_of(mutant, reasons)) for mutant in found.explained]
    lines = [
        f"| `{mutant.function}` | {_cell(mutant.old)} | {_cell(mutant.new)} | {reason} |"
        for mutant, reason in rows
    ]
    head = _PAGE.format(
        size=size, total=total, seed=seed, score=sum_up(found), version=version("mutmut"), goal=GOAL
    )
    return head + "\n".join([*lines, ""])


def _cell(text: str) -> str:
    """Return code as it may stand in a table."""
    line = " ".join(text.split()).replace("|", "\\|")
    return f"`` {line} ``" if line else "nothing"


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _some(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1 on")
    return int(text)


def read_arguments(words: Sequence[str] | None, environ: Mapping[str, str]) -> argparse.Namespace:
    """Read the words of a command line; what makes no sense ends the process with one line and status 2."""
    parser = _Parser(prog="mutation.py", description=__doc__)
    parser.add_argument("--seed", default="pymllm", help="names the sample")
    parser.add_argument("--sample", type=_some, default=300, help="how many mutants")
    parser.add_argument("--jobs", type=_some, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", nargs="+", help="files to change, as src/pymllm/oracle/slot_*.py")
    parser.add_argument("--folder", type=Path, help="keep what can be made again: mutants, who enters what")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep each result, and go on with those")
    parser.add_argument(
        "--shard",
        metavar="I/N",
        default=environ.get("PYMLLM_SHARD") or None,
        help="try only part I of N of the sample (PYMLLM_SHARD); env, env/N: as the scheduler says",
    )
    parser.add_argument("--page", type=Path, help="write the score as Markdown")
    found = parser.parse_args(words)
    try:
        found.shard = None if found.shard is None else read_shard(found.shard, environ)
    except UsageError as error:
        parser.error(f"--shard {error}")
    if found.shard is not None and found.shard.count > found.sample:
        parser.error(f"--shard {found.shard}: of {found.sample} mutants; take at most so many shards")
    if found.shard is not None and found.page is not None:
        parser.error(f"--page is of the whole sample, and --shard {found.shard} of a part: name one of them")
    for name in ("folder", "keep", "page"):
        path = getattr(found, name)
        if path is not None and not path.absolute().parent.is_dir():
            parser.error(f"--{name} {path}: there is no folder {path.parent}; make it first")
    if found.folder is not None and found.folder.exists() and not found.folder.is_dir():
        parser.error(f"--folder {found.folder}: it is no folder; name another one")
    if found.page is not None and (found.page.is_dir() or found.page == found.keep):
        parser.error(f"--page {found.page}: it is a folder, or the file of --keep; name another file")
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*.py")]
    for pattern in found.only or ():
        if not fnmatch.filter(files, pattern):  # as mutmut reads it
            parser.error(f"--only {pattern}: no file of {ROOT} is called so; name some as src/pymllm/core/*")
    try:
        if found.keep is not None:
            Results(found.keep, "")
    except UsageError as error:
        parser.error(f"--keep: {error}")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Make mutants, run a sample or its shard, print the score; 0 where it is good enough, or only a part."""
    arguments = read_arguments(words, os.environ)
    only = arguments.only or [f"src/pymllm/{room}/*" for room in ROOMS]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        names = make_mutants(folder, ROOT, only)
        chosen = sample(names, arguments.seed, arguments.sample)
        whole = len(chosen)
        if arguments.shard is not None:
            chosen = list(arguments.shard.keep(chosen))
        changes = {name: read_mutant(folder, name) for name in chosen}
        results = Results(arguments.keep or Path(temporary) / "kept.jsonl", digest_sources(ROOT, [EXPLAINED]))
        noticed = find_out(folder, changes, arguments.jobs, results)
    found = score({name: changes[name] for name in chosen}, noticed)
    for mutant in found.survived:
        print(f"\n{mutant.function}\n- {mutant.old}\n+ {mutant.new}")
    for mutant in find_stale(explain()):
        print(f"\n{EXPLAINED.name} explains what is not there any more: {mutant.function}: {mutant.old}")
    drawn = f"seed {arguments.seed}, {whole} of {len(names)}"
    if arguments.shard is not None:
        print(f"\n{sum_up(found)}; part {arguments.shard}, {len(chosen)} mutants of {drawn}")
        return 0  # a part has no goal
    print(f"\n{sum_up(found)}; {drawn}")
    if arguments.page is not None:
        page = make_page(found, arguments.seed, whole, len(names))
        arguments.page.write_text(page, encoding="utf-8")
    return 0 if found.share >= GOAL else 1


def find_out(folder: Path, changes: dict[str, Change], jobs: int, results: Results) -> dict[str, str]:
    """Run the tests on all changes without a known result; return the noticing test by name, or nothing."""
    # Names count up in a function: after a change of it they mean something else.
    keys = {name: f"{name} {zlib.crc32((it.old + it.new).encode()):08x}" for name, it in changes.items()}
    reasons = explain()
    tried = {
        keys[name]: it
        for name, it in changes.items()
        if reason_of(Mutant(it.function, it.old, it.new), reasons) is None
    }
    left = {key: it for key, it in tried.items() if key not in results.known}

    def show(key: str, by: str) -> None:
        print(f"{key.partition(' ')[0]}: {by or 'NOBODY'}", file=sys.stderr, flush=True)

    print(f"{len(tried) - len(left)} mutants are known, {len(left)} to try", file=sys.stderr, flush=True)
    if left:
        import torch  # noqa: F401  # once, for all processes that are forked

        run_all(ROOT, left, ROOMS, jobs, folder, results, show)
        results.reload()
    return {name: results.known.get(key, "") for name, key in keys.items()}


if __name__ == "__main__":
    raise SystemExit(main())
