"""The three settings by name: how long programs are, and how many there are.

``pymllm verify --profile`` and pytest's ``--hypothesis-profile`` mean the same three. Light: nothing is
imported, so that a test session can read the numbers first of all.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CI", "DEEP", "DEV", "PROFILES", "Profile"]


@dataclass(frozen=True, slots=True)
class Profile:
    """How thoroughly to search.

    Parameters
    ----------
    name : str
        What people type.
    summary : str
        What it is for.
    steps : int
        Most acts of one program.
    examples : int
        Programs per machine and configuration: in tests.
    seconds : float
        Processor time for which `pymllm verify` promises programs, as our own classes take it on a quiet
        machine: it is shared out by the weights of machines (`pymllm.conformance.machines`) over their
        configurations, and each plays as many programs as its machine's pace makes of that. No clock is
        looked at, so that equal options play the same programs however busy a machine is.
    seconds_max : float
        Most of it for a weight of 1: a single small adapter is not searched for as long as all.
    shrinks : int
        Most programs to play while a found one is made smaller.
    seed : int or None
        Seed where none is given; ``None`` draws one, so that every night looks elsewhere.
    """

    name: str
    summary: str
    steps: int
    examples: int
    seconds: float
    seconds_max: float
    shrinks: int
    seed: int | None


DEV = Profile("dev", "a few seconds", 30, 30, 10.0, 0.5, 100, 0)
CI = Profile("ci", "half a minute on two cores, from a fixed seed", 40, 60, 46.0, 4.0, 300, 0)
DEEP = Profile("deep", "hours, another seed each time", 100, 1000, 14_400.0, 1800.0, 10_000, None)

PROFILES: dict[str, Profile] = {profile.name: profile for profile in (DEV, CI, DEEP)}
"""Each by its name."""
