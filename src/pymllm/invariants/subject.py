"""What a check is given must be an object of the class that it walks."""

from __future__ import annotations

from reprlib import repr as short_repr

__all__ = ["check_subject"]


def check_subject(given: object, expected: type) -> None:
    """Refuse what a check cannot walk, before it trips over a missing field.

    Parameters
    ----------
    given : object
        What the caller wants checked.
    expected : type
        The class that the check knows.

    Raises
    ------
    TypeError
        ``given`` is no instance of it.

    Notes
    -----
    Laws: X1.
    """
    if not isinstance(given, expected):
        raise TypeError(f"{short_repr(given)} is a {type(given).__name__}: give a {expected.__name__}")
