"""What the wrong implementations share: each is one of ours but for a few lines, and names the law it breaks.

They stand in the modules `faulty_...`, and under their names in `pymllm.adapters.registry`. Nothing looks
inside them: whoever catches one has done so by operations and outcomes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from pymllm.history.files import Config


class Faulty:
    """Goes before one of our adapters among the bases of a wrong one.

    `BREAKS` is the id of the law that catches it, `ALSO` those that its fault breaks as a consequence and
    that may be seen first; `SOUND` is the registry name of the adapter that it is but for its fault, and
    `NEEDS_ENGINE` says that it takes a program of an engine to see the fault.
    """

    BREAKS: ClassVar[str]
    ALSO: ClassVar[tuple[str, ...]] = ()
    SOUND: ClassVar[str]
    CONFIGURATIONS: ClassVar[Sequence[Config]]
    NEEDS_ENGINE: ClassVar[bool] = False

    def audit(self) -> Sequence[str]:
        """Look at nothing: only the outcomes may tell."""
        return ()

    @classmethod
    def breaking(
        cls,
        law: str,
        *also: str,
        where: Callable[[Config], bool] = lambda config: True,
        **settings: int | str | bool | None,
    ) -> Callable[[type], Any]:
        """Return what makes a wrong class into this adapter with it in the place of the part that it varies.

        The adapter has the class's name and docstring, and those configurations in which the fault shows.
        """
        shown = tuple(filter(where, configured(cls.CONFIGURATIONS, **settings)))

        def adapt(wrong: type) -> Any:
            (part,) = (
                name
                for name in dir(cls)
                if isinstance(right := getattr(cls, name), type)
                and name.isupper()
                and issubclass(wrong, right)
            )
            own = {"__doc__": wrong.__doc__, "__module__": wrong.__module__, "CONFIGURATIONS": shown}
            return type(wrong.__name__, (cls,), own | {"BREAKS": law, "ALSO": also, part: wrong})

        return adapt


def configured(configurations: Sequence[Config], **wanted: int | str | bool | None) -> tuple[Config, ...]:
    """Return those of some configurations that have these settings: the ones in which a fault shows."""
    return tuple(config for config in configurations if wanted.items() <= config.items())
