"""Write docs/plants.md: ``python tests/meta/plants_page.py`` after a change of the table."""

from __future__ import annotations

from pathlib import Path

from plant import Plant
from plant_table import PLANTS, TITLES
from unplanted import UNPLANTED

__all__ = ["PAGE", "render"]

PAGE = Path(__file__).parents[2] / "docs" / "plants.md"

_HEAD = """\
# Planted bugs

{entries} bugs from the history of serving engines are the yardstick of these tests. {planted} of them can be
planted in the classes that exist: a plant edits a function while a test runs, and that test must fail. An
entry that fits several systems is planted in each. The others are listed below with the reason.

`tests/meta/test_plants.py` plants each one and sees it noticed; `tests/meta/*_plants.py` have the edits. This
page is written by `python tests/meta/plants_page.py` from the same table.

## Planted

| id | bug | where | laws | the test that notices |
| --- | --- | --- | --- | --- |
"""

_MIDDLE = """
Where a class is built another way than the entry's, the plant differs:

"""

_TAIL = """
## Not planted

| id | bug | reason |
| --- | --- | --- |
"""


def render() -> str:
    """Return the page as the table has it."""
    planted = "".join(map(_row, PLANTS))
    notes = "".join(f"- {plant.name}: {plant.note}.\n" for plant in PLANTS if plant.note)
    unplanted = "".join(f"| {entry} | {TITLES[entry]} | {reason} |\n" for entry, reason in UNPLANTED.items())
    return (
        _HEAD.format(entries=len(TITLES), planted=len({plant.id for plant in PLANTS}))
        + planted
        + _MIDDLE
        + notes
        + _TAIL
        + unplanted
    )


def _row(plant: Plant) -> str:
    places = dict.fromkeys(f"`{edit.target.partition(':')[2]}`" for edit in plant.edits)
    path, _, test = plant.noticed_by.partition("::")
    return (
        f"| {plant.name} | {TITLES[plant.id]} | {', '.join(places)} | {', '.join(plant.laws)} "
        f"| `{test}` in {path.removeprefix('tests/')} |\n"
    )


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
