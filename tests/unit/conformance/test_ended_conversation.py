"""What is kept of a conversation that came to an end."""

from __future__ import annotations

from pymllm.conformance.adapter_calls import EndedConversation, ended_conversation
from pymllm.errors import AdapterError, ConversationError


def test_only_the_error_of_a_conversation_has_one() -> None:
    """Any other adapter has said nothing."""
    ended = ended_conversation(ConversationError("mine", "gave no answer", "hung", "> hello\n"))
    assert ended == EndedConversation("hung", "> hello\n")
    assert ended_conversation(AdapterError("mine", "no module")) is None
