"""Traces of recorded requests in many formats, all read as one kind of record.

`registry` knows the formats and reads any of them, `lines` opens what they lie in, and each format has a
module of its own. What a reader yields is `pymllm.workloads.request.Request`, one after another.
"""

from __future__ import annotations
