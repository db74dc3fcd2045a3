"""What can become of a conversation that does not go on, one word for each."""

from __future__ import annotations

from typing import Final

VERDICTS: Final[dict[str, str]] = {
    "crashed": "ended by a signal, or with a status other than 0",
    "ended": "ended with status 0 while an answer was due",
    "closed": "closed its standard input or output and went on running",
    "hung": "gave no answer in time",
    "garbled": "wrote a line that is no message, or not the one that was due",
    "too-long": "wrote a line that is longer than the limit",
    "out-of-step": "answered another step than the one that was due, or without being asked",
    "gave-up": "said by itself that it cannot go on",
    "foreign": "speaks no version of the protocol that is known here",
}
"""By the word that stands in the message and in documents."""
