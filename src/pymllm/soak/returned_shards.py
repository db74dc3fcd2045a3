"""The shards of a campaign that other machines returned: checked, counted, and stored beside the plan."""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pymllm.instrument.provenance import build_version
from pymllm.soak.ledger import CampaignHeader, read_line
from pymllm.soak.spread_plan import SHARDS
from pymllm.text_file import FILE_LIMIT, RECORDS_LIMIT, cut, read_json
from pymllm.work.spread.shard_task import ENDED, LEDGER, PROGRAMS, PlayedShard, describe_end, unpack
from pymllm.work.spread.spread import Progress

_FILE_NAME = re.compile(r"[\w.-]{1,255}\.jsonl", re.ASCII)


class Returned:
    """The folders of returned shards in a campaign's folder.

    A folder is there once all of it is: whoever goes on with the campaign plays what has none. ``refused``
    are adapters that shards could not play, with the reason.
    """

    def __init__(self, folder: Path, count: int, progress: Progress, complain: Callable[[str], None]) -> None:
        self.refused: dict[str, str] = {}
        self._folder, self._count, self._progress, self._complain = folder / SHARDS, count, progress, complain
        self._version = build_version()

    @property
    def folders(self) -> list[Path]:
        """The folders of the returned shards, in order."""
        found = (self._folder / f"{number}-of-{self._count}" for number in range(1, self._count + 1))
        return [folder for folder in found if (folder / LEDGER).exists()]

    def keep(self, played: PlayedShard) -> str | None:
        """Store a returned shard; if it is not the requested one, return the reason and store nothing."""
        if played.status not in ENDED:
            return describe_end(played)
        try:
            ledger = unpack(played.results, RECORDS_LIMIT)
            header = read_line(ledger.partition(b"\n")[0].decode())
            document: Any = read_json(unpack(played.document, FILE_LIMIT).decode())
            if not isinstance(header, CampaignHeader):
                return "its ledger begins without a header"
            if header.version != self._version:
                return f"it has pymllm {header.version}, and here is {self._version}; install the same there"
            for _, packed in played.programs:  # one at a time, for they may be long
                unpack(packed, RECORDS_LIMIT)
            self._count_in(played, document)
        except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
            return f"what came back cannot be read: {cut(str(error), 200)}"
        self._write(played, ledger)
        return None

    def _count_in(self, played: PlayedShard, document: Any) -> None:
        operations = int(document["operations"])
        failures = sum(int(it["runs"]) for row in document["adapters"] for it in row["failures"])
        refused = {str(name): str(why) for name, why in document["refused"].items()}
        self._progress.amount += operations
        self._progress.failures += failures
        self._progress.resumed += played.resumed
        self.refused |= refused

    def _write(self, played: PlayedShard, ledger: bytes) -> None:
        """Write a folder under a temporary name, and move it to its place as a whole."""
        name = f"{played.number}-of-{self._count}"
        partial = self._folder / f".{name}"
        shutil.rmtree(partial, ignore_errors=True)
        (partial / PROGRAMS).mkdir(parents=True)
        (partial / LEDGER).write_bytes(ledger)
        for file, packed in played.programs:
            if _FILE_NAME.fullmatch(file):  # what came from elsewhere stays in its folder
                (partial / PROGRAMS / file).write_bytes(unpack(packed, RECORDS_LIMIT))
        shutil.rmtree(self._folder / name, ignore_errors=True)
        partial.rename(self._folder / name)
        if played.left:
            self._complain(
                f"shard {name}: {played.left} of its programs were too large to travel; play their runs again"
            )
