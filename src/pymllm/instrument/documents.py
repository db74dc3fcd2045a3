"""What a document is: a record that a command prints with ``--json``, and that a store keeps."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct


class Row(Struct, frozen=True, kw_only=False):
    """A part of a document."""


class Document(Struct, frozen=True, kw_only=True, tag_field="schema"):
    """What a command prints with ``--json``."""

    version: Literal[1] = 1

    @property
    def schema(self) -> str:
        """The name of its schema, such as ``pymllm.verify``."""
        return str(self.__struct_config__.tag)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain
