"""Folders that show some installed packages and no other, for machines that have little."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def needed_by(name: str, seen: set[str], without: Collection[str] = ()) -> None:
    """Add a distribution to ``seen`` with all that it needs, but nothing that must be missing."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name in seen or name.replace("-", "_") in without:
        return
    try:
        requirements = distribution(name).requires or []
    except PackageNotFoundError:  # for another Python or system
        return
    seen.add(name)
    for requirement in requirements:
        if "extra ==" not in requirement:
            needed_by(re.match(r"[\w.-]+", requirement)[0], seen, without)


def show_packages(names: Iterable[str], folder: Path) -> None:
    """Show these distributions in a folder, as links."""
    for name in names:
        packages = distribution(name)
        for top in {
            file.parts[0] for file in packages.files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            if not (folder / top).exists() and not top.endswith(".pth"):
                (folder / top).symlink_to(packages.locate_file(top))
