"""The commands that a user can type and their results, recorded for two source trees and compared.

A redesign must change none of it. Twice the tree of before, once the other; a clock, a progress line or a
share of time differs between the first two, and is left out::

    python tests/before_and_after.py TREE before-1
    python tests/before_and_after.py TREE before-2
    python tests/before_and_after.py OTHER_TREE after
    python tests/before_and_after.py --compare before-1 before-2 after

It takes some minutes: every ``--help``, refusals, every schema, equal results from equal seeds, and files
that earlier versions have written.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VERBS = """
import click
from pymllm.cli import main
def tell(command, words):
    print(*words)
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            tell(command.get_command(click.Context(command), name), [*words, name])
tell(main, [])
"""
SEARCHED = (
    *("radix", "chunk", "rows", "token-slots", "mamba", "blocks", "requests", "index-dict", "gdn-states"),
    *("kv-buffers", "hashes", "swa-slots", "radix-window", "faulty-row-zero"),
)


def played(tree: Path) -> Iterator[str]:
    """Commands whose results follow from a seed, or from a file that an earlier version wrote."""
    unit = tree / "tests" / "unit"
    found = unit / "report" / "written_by_1" / "found"
    program = found / "faulty-row-zero-P1-5.jsonl"
    yield from ("adapters", "adapters --json", "goals", "goals --json", "faults list")
    for name in SEARCHED:
        yield f"verify --adapter {name} --seed 3 --examples 4 --jobs 1 --json"
    yield "verify --adapter faulty-row-zero --seed 3 --examples 4 --jobs 1"
    yield "compare radix chunk --seed 3 --examples 3 --jobs 1 --json"
    yield "soak --adapter radix --operations 3000 --seed 5 --jobs 1 --longest 800 --json"
    yield "soak --operations 6000 --seed 6 --jobs 1 --longest 500 --json"
    yield "faults hunt --seed 1 --jobs 1 --json"
    yield "replay chat --cache radix --cache chunk --requests 40 --json"
    yield "replay-serial chat --requests 40 --json"
    yield "curve chat --requests 60 --json"
    yield "vectors run --adapter radix --json"
    yield "vectors faults --claims pool,extra_key,exact_lru --json"
    yield f"report {found / 'store'} --format summary"
    yield f"report {found} --format openmetrics"
    yield f"diff {found / 'store'} {found / 'store'}"
    for verb in ("judge", "rerun --adapter rows", "shrink"):
        yield f"{verb} {program}"
        yield f"{verb} {program} --json"
    yield f"merge {found / 'campaign'} --json"


def write_down(tree: Path, folder: Path) -> None:
    """Run every command on a tree; each has a file with status, output and errors."""
    work = folder.with_name(f"{folder.name}.work")
    for made in (folder, work):
        made.mkdir(parents=True)
    env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(tree / "src")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=work, env=env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    verbs = run("-c", VERBS).stdout.splitlines()
    schemas = run("-c", "from pymllm.cli.schema import SCHEMAS\nprint(*SCHEMAS)").stdout.split()
    commands = [
        f"{verb} {word}" for verb in verbs for word in ("--help", "--no-such-option", "no-such-thing")
    ]
    commands += [f"schema {name}" for name in schemas]
    for number, command in enumerate((*commands, *played(tree))):
        done = run("-m", "pymllm", *command.split())
        name = re.sub(r"[^\w-]+", "_", command.replace(str(tree), ""))[:100]
        told = f"status {done.returncode}\n--- out\n{done.stdout}\n--- err\n{done.stderr}"
        (folder / f"{number:03}{name}.txt").write_text(told.replace(str(tree), "TREE"), encoding="utf-8")


def leaves(value: object, path: str = "out") -> Iterator[tuple[str, object]]:
    """Each value of a document with where it stands."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{path}.{key}")
    else:
        yield path, value


def values_of(path: Path) -> dict[str, object]:
    """Return the values that a command printed: by line, or by field of its document."""
    status, _, rest = path.read_text(encoding="utf-8").partition("\n--- out\n")
    out, _, errors = rest.partition("\n--- err\n")
    try:
        told: dict[str, object] = dict(leaves(json.loads(out)))
    except ValueError:
        told = {f"out {number}": line for number, line in enumerate(out.splitlines())}
    return {"status": status, **told} | {f"err {number}": it for number, it in enumerate(errors.splitlines())}


def compare(first: Path, again: Path, other: Path) -> int:
    """Print each value of ``other`` that differs from what both of the others have; return how many do."""
    names = sorted({path.name for folder in (first, again, other) for path in folder.iterdir()})
    compared = different = 0
    for name in names:
        if not all((folder / name).is_file() for folder in (first, again, other)):
            print(f"{name}: not in each folder")
            different += 1
            continue
        before, twice, after = (values_of(folder / name) for folder in (first, again, other))
        for key in sorted(before.keys() | twice.keys() | after.keys()):
            if before.get(key) == twice.get(key):
                compared += 1
                if before.get(key) != after.get(key):
                    different += 1
                    print(f"{name}: {key}: {before.get(key)!r} before, {after.get(key)!r} after")
    print(f"{len(names)} commands, {compared} values compared, {different} differ")
    return different


if __name__ == "__main__":
    if sys.argv[1] == "--compare":
        sys.exit(compare(*map(Path, sys.argv[2:5])) > 0)
    write_down(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
