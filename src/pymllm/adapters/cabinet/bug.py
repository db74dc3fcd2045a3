"""What is known of a bug of somebody's engine: its sources, how it came about, what users saw."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CODE", "COMMIT", "RUN", "SUMMARY", "THREAD", "THREAD_AND_RUN", "Bug"]

COMMIT = "the commit was read"
THREAD = "the thread was read, and not every line of its change"
THREAD_AND_RUN = "the thread was read, and the code was run"
RUN = "the linked code was run"
CODE = "the linked code was read; nobody has reported it"
SUMMARY = "known from a summary; the thread itself was not read"


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug.

    Parameters
    ----------
    id : str
        Such as ``"B01"``; it never changes its meaning.
    title : str
        What is wrong, in one line that can be read alone.
    engine : str
        Whose bug it was.
    links : tuple of str
        Issues, pull requests and commits, absolute; the most telling first.
    mechanism : str
        How it comes about.
    seen : str
        What users saw, or who found it where nobody did.
    evidence : str
        What was read of it.
    version : str
        Of the engine, where it is known.
    """

    id: str
    title: str
    engine: str
    links: tuple[str, ...]
    mechanism: str
    seen: str
    evidence: str
    version: str = ""
