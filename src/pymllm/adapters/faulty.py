"""What the wrong implementations share: each is one of ours but for a few lines, and names the law it breaks.

They stand in `faulty_slots`, `faulty_pools`, `faulty_radix`, `faulty_lookups`, `faulty_windows`,
`faulty_mamba`, `faulty_blocks` and `faulty_requests`, and under their names in
`pymllm.adapters.registry`. Nothing looks inside them: whoever catches one has done so by operations and
outcomes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pymllm.history.files import Config

__all__ = ["Faulty", "configured"]


class Faulty:
    """Goes before one of our adapters among the bases of a wrong one.

    Attributes
    ----------
    BREAKS : str
        Id of the law that catches it.
    ALSO : tuple of str
        Ids of laws that its fault breaks as a consequence, and that may be seen first.
    SOUND : str
        Registry name of the adapter that it is but for its fault.
    NEEDS_ENGINE : bool
        Whether it takes a program of an engine to see the fault.
    """

    BREAKS: ClassVar[str]
    ALSO: ClassVar[tuple[str, ...]] = ()
    SOUND: ClassVar[str]
    NEEDS_ENGINE: ClassVar[bool] = False

    def audit(self) -> Sequence[str]:
        """Look at nothing: only the outcomes may tell."""
        return ()


def configured(configurations: Sequence[Config], **wanted: int | str | bool | None) -> tuple[Config, ...]:
    """Return those of some configurations that have these settings: the ones in which a fault shows."""
    return tuple(config for config in configurations if wanted.items() <= config.items())
