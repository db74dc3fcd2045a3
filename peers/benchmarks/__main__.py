"""``python -m peers.benchmarks``: play the scenarios, print the table, write the document."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# Before torch is loaded: the tensors are small, and other threads would be timed, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.machine import machine_facts
from benchmarks.run_store import keep_document
from peers.benchmarks.contenders import CONTENDERS, describe, version_of
from peers.benchmarks.run import Options, all_scenarios, play_all
from peers.benchmarks.table import make_absences, make_markdown, make_table
from peers.benchmarks.traces import missing_trace
from pymllm.instrument.peer_comparison import (
    CLOCKS,
    SCHEMA,
    VERSION,
    Contender,
    PeerComparison,
    ScenarioRow,
    make_document,
)
from pymllm.text_file import write_text_file

COMMAND = "python -m peers.benchmarks"

SLICES = {"full": (1.0, 1.0), "short": (1.0, 0.25), "smoke": (0.125, 0.01)}
"""By name: the factors of what is built, and of rounds and seconds."""
INTERRUPTED = 130
PACKAGES = ("pymllm", "torch", "numpy", "sglang", "vllm", "megatron-core", "mllm", "Megatron-LM")


def main(arguments: list[str] | None = None) -> int:
    """Play the chosen scenarios; return 1 where the gate refuses a ratio, 2 for bad input, 130 on Ctrl-C."""
    words = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(words)
    check_places(options.json, options.store)
    scale, share = SLICES[options.slice]
    ids = chosen(options.scenario)
    reason = missing_trace()
    if reason is not None and any(id.startswith("T3") for id in ids):
        print(f"not here: T3: {reason}", file=sys.stderr)
        ids = [id for id in ids if not id.startswith("T3")]
    contenders = everybody()
    names = sorted({peer.NAME for peers in CONTENDERS.values() for peer in peers})
    for one in options.only:
        if one not in names:
            parser().error(f"no contender is called {one}; there are {', '.join(names)}")
    print(make_absences(contenders), end="", file=sys.stderr)
    begun, machine = time.monotonic(), machine_facts()
    known: list[ScenarioRow] = []

    def document() -> dict[str, Any]:
        return make_document(
            PeerComparison(
                schema=SCHEMA,
                version=VERSION,
                versions={name: told for name in PACKAGES if (told := version_of(name))},
                machine=machine,
                clock=options.clock,
                slice=options.slice,
                seconds=round(time.monotonic() - begun, 1),
                contenders=contenders,
                scenarios=tuple(known),
            )
        )

    def keep(row: ScenarioRow) -> None:
        """Print a scenario and write the document anew."""
        known.append(row)
        tell(row)
        if options.json:
            write_text_file(Path(options.json), json.dumps(document(), indent=1) + "\n")

    try:
        rows = play_all(ids, Options(options.clock, scale, share, tuple(options.only)), keep)
    except KeyboardInterrupt:
        print(make_markdown(known) if options.markdown else make_table(known), end="")
        print(f"interrupted: {len(known)} of {len(ids)} scenarios were played", file=sys.stderr)
        return INTERRUPTED
    if options.store and rows:
        made = document()
        path = keep_document(Path(options.store), made, made["versions"], [*COMMAND.split(), *words])
        print(f"kept as {path}", file=sys.stderr)
    print(make_markdown(rows) if options.markdown else make_table(rows), end="")
    return gate(rows) if options.gate else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=COMMAND,
        description="Ours, the best peer, the limit and the target of every scenario, all from one run.",
    )
    made.add_argument(
        "--scenario", metavar="ID", action="append", default=[], help="T1a-p16, T6 or 'T*-p1'; all by default"
    )
    made.add_argument(
        "--only", metavar="PEER", action="append", default=[], help="such as sglang-rust; all by default"
    )
    made.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: on a machine that others use, too"
    )
    made.add_argument(
        "--slice",
        choices=tuple(SLICES),
        default="full",
        help="short: a quarter of the rounds and of the time; smoke: tiny, for tests",
    )
    made.add_argument("--json", metavar="FILE", help="write the document of pymllm schema peers")
    made.add_argument("--store", metavar="FOLDER", help="keep the result in this store of runs, too")
    made.add_argument("--markdown", action="store_true", help="print the table for a page")
    made.add_argument(
        "--gate", action="store_true", help="end with 1 where ours is behind by more than is accepted"
    )
    return made


def check_places(json_file: str | None, store: str | None) -> None:
    """Exit with status 2, before anything is played, where a result could not be written."""
    if json_file and not os.access(folder := Path(json_file).absolute().parent, os.W_OK):
        parser().error(f"--json {json_file}: {folder} is no folder that can be written to; name another one")
    if store:
        try:
            Path(store).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser().error(f"--store {store}: {error.strerror}; name a folder that can be made")
        if not os.access(store, os.W_OK):
            parser().error(f"--store {store} cannot be written to; name another folder")


def chosen(asked: list[str]) -> list[str]:
    """Return the ids of the chosen scenarios."""
    known = list(all_scenarios())
    for one in asked:
        if not any(is_meant(one, id) for id in known):
            parser().error(f"no scenario is called {one}; there are {', '.join(known)}")
    return [id for id in known if not asked or any(is_meant(one, id) for one in asked)]


def is_meant(asked: str, id: str) -> bool:
    """Tell whether a pattern, such as T1a-p16, T1a, T1 or 'T*-p16', means a scenario."""
    question = id.partition("-")[0]
    return fnmatch.fnmatch(id, asked) or asked in (question, question.rstrip("abc"))


def everybody() -> tuple[Contender, ...]:
    """Describe all contenders of every kind."""
    return tuple(describe(peer, kind) for kind, peers in CONTENDERS.items() for peer in peers)


def tell(row: ScenarioRow) -> None:
    """Print a scenario as soon as it is over."""
    told = "  ".join(f"{one.contender} {one.value:.4g} ({one.samples})" for one in row.standings)
    print(f"{row.id}: {told}  limit {row.limit:.3g} {row.unit}", file=sys.stderr, flush=True)


def gate(rows: tuple[ScenarioRow, ...]) -> int:
    """Refuse ratios whose whole interval is too high; times do not count, since machines differ."""
    behind = [row for row in rows if row.ratio and row.ratio.low > row.accepted]
    for row in behind:
        print(f"{row.id}: ours takes {row.ratio.low:.2f} times {row.best_peer} or more", file=sys.stderr)
    return 1 if behind else 0


if __name__ == "__main__":
    raise SystemExit(main())
