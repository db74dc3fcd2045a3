"""What is kept of a conversation with a program that did not go on with it."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.errors import ConversationError

__all__ = ["EndedConversation", "ended_conversation"]


@dataclass(frozen=True, slots=True)
class EndedConversation:
    """How it ended, and what was said last.

    Parameters
    ----------
    verdict : str
        Of `pymllm.adapters.process.VERDICTS`.
    text : str
        The last lines, for a file.
    """

    verdict: str
    text: str


def ended_conversation(error: BaseException) -> EndedConversation | None:
    """Return what an error kept of a conversation, if it is of one."""
    if not isinstance(error, ConversationError):
        return None
    return EndedConversation(error.verdict, error.conversation)
