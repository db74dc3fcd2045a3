"""The optional abilities of an unknown server, found by requests: token ids as prompts, and namespaces."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from random import Random

from pymllm.probing.clients import Client, OpenAI, ServerFailed
from pymllm.probing.programs import TOKENS
from pymllm.probing.records import Answer

_FIRST = 10
"""The first token of each prompt in this module; no prompt of a program begins with it."""
_LONGEST = 144
_REFUSED = (400, 404, 415, 422, 500, 501)
_LEAD_MOST = 2
"""The greatest number of tokens that a server may put before a prompt of token ids."""


def find_abilities(client: Client, longest: int, *, claims_namespaces: bool = False) -> None:
    """Find the optional abilities of a server by requests, and set its client to use them.

    Token ids are used unless they are refused, or counted as another number: then prompts are texts. A
    namespace is used if a prompt was served from the cache in its own, and in no other one. With
    ``claims_namespaces`` it is used in any case, so that V5 may find that it does nothing.

    Makes at most eight requests of up to ``longest`` tokens, or 144, for a token each. What fails otherwise
    is left to the probe, which tells it.
    """
    if client.is_known:
        return
    with suppress(ServerFailed):
        if isinstance(client, OpenAI):
            _find_ids(client, longest)
        client.no_salts = "" if claims_namespaces else _why_no_namespaces(client, longest)
        client.has_salts = not client.no_salts


def speak_alike(one: Client, other: Client) -> None:
    """Make two clients, whose answers are compared, send and read tokens in the same form."""
    one.has_ids = other.has_ids = one.has_ids and other.has_ids
    if isinstance(one, OpenAI) and isinstance(other, OpenAI):
        one.returns_ids = other.returns_ids = one.returns_ids and other.returns_ids


def _find_ids(client: OpenAI, longest: int) -> None:
    prompt = _prompt(longest)
    answer = _answer(client, prompt)
    told = None if answer is None else answer.prompt_tokens
    if answer is None or (told is not None and not 0 <= told - len(prompt) <= _LEAD_MOST):
        client.has_ids = False
        return
    client.returns_ids = True
    answer = _answer(client, prompt)
    client.returns_ids = answer is not None and bool(answer.tokens)


def _why_no_namespaces(client: Client, longest: int) -> str:
    """Return why namespaces cannot be used, or an empty text if the server separates them."""
    field, prompt = client.salt_field, _prompt(longest)
    client.has_salts = True
    try:
        cached = [*_cached(client, prompt)]
    finally:
        client.has_salts = False
    if None in cached:
        return f"the server refuses {field}, or tells no cached tokens"
    first, own, other, others_own, third, last = map(bool, cached)
    if not (own and others_own and last):
        return f"a prompt that was asked twice with the same {field} was not served from the cache"
    if first or other or third:
        claim = f"--api {client.api},namespaces claims that it keeps them apart"
        return f"the server takes {field}, and serves what another one has asked; {claim}"
    return ""


def _cached(client: Client, prompt: tuple[int, ...]) -> Iterator[int | None]:
    one, other, third = (f"probe-{secrets.token_hex(6)}" for _ in range(3))
    for salt in (one, one, other, other, third, one):
        answer = _answer(client, prompt, salt)
        cached = None if answer is None else answer.cached
        yield cached
        if cached is None:
            return


def _answer(client: Client, prompt: tuple[int, ...], salt: str | None = None) -> Answer | None:
    """Request a token; return ``None`` if the server refuses this form of request."""
    try:
        return client.ask(prompt, 1, salt)
    except ServerFailed as error:
        if error.status in _REFUSED:
            return None
        raise


def _prompt(longest: int) -> tuple[int, ...]:
    return (_FIRST, *Random().choices(TOKENS, k=min(longest, _LONGEST) - 1))
