"""The command for the table of real bugs and its page: ``python -m peers.time_machine run``, and ``page``.

``run`` installs, for each row that can be reached, the last release that had the bug and the first that had
not, both without their dependencies, and searches the old one: `pymllm verify` as it is, from a few seeds
that are the same for all rows, and then `pymllm soak` until ten minutes are over. No search is told of the
bug. What is found is played again in both releases, and the fixed one is searched in the same way. Each row
is written down when it is done, so that a run that was stopped goes on where it was. What the adapters need
must be there already; ``tox -e time-machine`` installs it.

``page`` writes docs/time-machine.md from the table and its results.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from peers.time_machine.bugs import Bug, read_bugs
from peers.time_machine.page import PAGE, render
from peers.time_machine.playing import play
from peers.time_machine.results import PROGRAMS, RESULTS, read_results, write_results
from pymllm.errors import UsageError
from pymllm.text_file import write_text_file


def main(arguments: Sequence[str] | None = None) -> int:
    """Play rows or write the page, as asked; return the exit status: 1 if a row could not be played."""
    parser = argparse.ArgumentParser(
        prog="python -m peers.time_machine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="play the rows that have no result yet")
    run.add_argument("--only", action="append", metavar="ID", help="only this row; may be repeated")
    run.add_argument("--again", action="store_true", help="also rows that have a result")
    run.add_argument("--jobs", type=int, default=2, help="processes of a search; by default 2")
    run.add_argument("--packages", type=Path, help="folder to keep releases in; by default none is kept")
    run.add_argument("--store", type=Path, help="folder to keep verifications in, for pymllm report")
    verbs.add_parser("page", help="write docs/time-machine.md")
    options = parser.parse_args(arguments)
    if options.verb == "page":
        write_text_file(PAGE, render(read_bugs(), read_results()))
        return 0
    bugs = read_bugs()
    reachable = [bug for bug in bugs if bug.reachable]
    for id in options.only or ():
        if id not in {bug.id for bug in reachable}:
            parser.error(
                f"--only {id}: no row of bugs.toml that is reachable; there are "
                f"{', '.join(bug.id for bug in reachable)}"
            )
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: a search needs at least one process")
    chosen = [bug for bug in reachable if not options.only or bug.id in options.only]
    with ExitStack() as stack:
        packages = options.packages or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = options.store and options.store.absolute()
        return _run(bugs, chosen, packages.absolute(), options.jobs, store, options.again)


def _run(
    bugs: Sequence[Bug], chosen: Sequence[Bug], packages: Path, jobs: int, store: Path | None, again: bool
) -> int:
    """Play the chosen rows, and keep the results of other rows that are still in the table."""
    by_id = {bug.id: bug for bug in bugs}
    known = {id: it for id, it in read_results().items() if id in by_id and it.is_of(by_id[id])}
    left = [bug for bug in chosen if again or bug.id not in known]
    failed = 0
    packages.mkdir(parents=True, exist_ok=True)
    for number, bug in enumerate(left, 1):
        _tell(f"{number} of {len(left)}: {bug.id}, {bug.project} {bug.last_with} and {bug.first_without}")
        with tempfile.TemporaryDirectory() as work:
            try:
                result = play(bug, packages, Path(work), jobs, PROGRAMS, store)
            except UsageError as error:
                _tell(f"{bug.id}: {error}")
                failed += 1
                continue
        known[bug.id] = result
        write_results((known[it.id] for it in bugs if it.id in known), RESULTS)
        found = result.found
        how = "not found" if found is None else f"{found.law}, {found.operations} operations"
        _tell(f"{bug.id}: {how}, {result.stage}, {result.seconds:.0f} s")
    return int(failed > 0)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
