"""The JSON document of a look at a machine. Its fields are promised: docs/schemas/doctor.schema.json.

The version counts up when a field goes away or changes its meaning; a new field does not change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymllm.history.records import schema_of

__all__ = ["SCHEMA", "VERSION", "Counter", "Device", "Document", "Torch", "doctor_schema"]

SCHEMA = "pymllm.doctor"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Counter:
    """What a counter reads; the value is null where it cannot be read, and the reason says why."""

    name: str
    value: int | None
    unit: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, as CUDA or as NVML knows it; fields that this one does not tell are null."""

    index: int
    name: str
    uuid: str | None
    driver: str | None
    capability: str | None
    memory: int | None
    reason: str | None
    counters: tuple[Counter, ...]


@dataclass(frozen=True, slots=True)
class Torch:
    """What torch is and sees; the reason says why it cannot be loaded, or why it sees no CUDA device."""

    version: str | None
    cuda: str | None
    hip: str | None
    cudnn: int | None
    threads: int | None
    import_seconds: float
    reason: str | None
    devices: tuple[Device, ...]
    counters: tuple[Counter, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """What ``pymllm doctor --json`` prints; a package that is not installed has no version."""

    schema: str
    version: int
    pymllm: str
    python: str
    platform: str
    processor: str
    cores: int
    usable_cores: int
    memory: int
    memory_available: int
    torch: Torch
    nvml: str | None
    nvml_reason: str | None
    nvml_devices: tuple[Device, ...]
    packages: dict[str, str | None]
    environment: dict[str, str]


def doctor_schema() -> dict[str, Any]:
    """Describe the document as a JSON schema (draft 2020-12)."""
    found = schema_of(Document)
    found["properties"]["schema"] = {"const": SCHEMA}
    found["properties"]["version"] = {"const": VERSION}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pymllm doctor", **found}
