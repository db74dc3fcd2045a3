"""The base class of the documents that ``--json`` prints and a store keeps, and that of ``doctor``."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct, field


class Row(Struct, frozen=True, kw_only=False):
    """A part of a document."""


class Document(Struct, frozen=True, kw_only=True, tag_field="schema"):
    """A record that a command prints with ``--json``."""

    version: Literal[1] = 1

    @property
    def schema(self) -> str:
        """The name of the document's schema, such as ``pymllm.verify``."""
        return str(self.__struct_config__.tag)

    def plain(self) -> dict[str, Any]:
        """Return the document as plain data for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


# -- a look at a machine -----------------------------------------------------------------------------------


class Counter(Row, frozen=True):
    """A counter's value, null where it cannot be read, and then the reason."""

    name: str
    value: int | None
    unit: str
    reason: str | None


class Device(Row, frozen=True, kw_only=True):
    """A GPU, as CUDA or as NVML describes it; unknown fields are null."""

    index: int = 0
    name: str
    uuid: str | None = None
    driver: str | None = None
    capability: str | None = None
    memory: int | None = None
    reason: str | None = None
    counters: tuple[Counter, ...] = ()


class TorchFacts(Row, frozen=True, kw_only=True):
    """Facts about torch, with the reason why it cannot be loaded, or why it sees no CUDA device."""

    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    cudnn: int | None = None
    threads: int | None = None
    import_seconds: float = 0.0
    reason: str | None = None
    devices: tuple[Device, ...] = ()
    counters: tuple[Counter, ...] = ()


class Probe(Row, frozen=True, kw_only=True):
    """A check by a separate process, which ``answered``, ``hung`` or ``died``, with the place."""

    name: str
    seconds: float
    outcome: str
    reason: str | None = None


class SmokeStep(Row, frozen=True, kw_only=True):
    """One step on a CUDA device, such as ``allocate``; the reason says why it failed."""

    device: int
    name: str
    seconds: float
    reason: str | None = None


class SmokeFacts(Row, frozen=True, kw_only=True):
    """The steps that ``--smoke`` tried, with the reason why it went no further, or tried nothing."""

    steps: tuple[SmokeStep, ...] = ()
    reason: str | None = None


class DoctorDocument(Document, frozen=True, kw_only=True, tag="pymllm.doctor"):
    """The document that ``pymllm doctor --json`` prints; a package that is not installed has no version.

    ``sick`` has what is wrong with the machine, one sentence each; nothing where it is healthy. ``smoke`` is
    null where nobody asked for it.
    """

    pymllm: str
    python: str
    platform: str
    processor: str
    cores: int = 0
    usable_cores: int
    memory: int
    memory_available: int = 0
    torch: TorchFacts
    nvml: str | None = None
    nvml_reason: str | None = None
    nvml_devices: tuple[Device, ...] = ()
    packages: dict[str, str | None] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    probes: tuple[Probe, ...] = ()
    smoke: SmokeFacts | None = None
    sick: tuple[str, ...] = ()
