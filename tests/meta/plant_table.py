"""The table of plants: every entry of the catalogue, planted or with the reason why not."""

from __future__ import annotations

import json
from pathlib import Path

import block_plants
import engine_plants
import hybrid_plants
import pool_plants
import radix_plants
import slot_plants
from plant import Plant

__all__ = ["PLANTS", "TITLES", "number_of"]

#: Titles by id, as the catalogue has them: what each bug is in one line.
TITLES: dict[str, str] = json.loads((Path(__file__).parent / "catalogue.json").read_text(encoding="utf-8"))


def number_of(entry: str) -> int:
    """Return the number in an id, by which the catalogue is sorted."""
    return int(entry.removeprefix("B"))


PLANTS: tuple[Plant, ...] = tuple(
    sorted(
        (
            *radix_plants.PLANTS,
            *pool_plants.PLANTS,
            *engine_plants.PLANTS,
            *hybrid_plants.PLANTS,
            *block_plants.PLANTS,
            *slot_plants.PLANTS,
        ),
        key=lambda plant: (number_of(plant.id), plant.name),
    )
)
