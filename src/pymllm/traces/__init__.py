"""Traces: recorded requests, in each of the forms that people have them in, read as one kind of record.

`registry` knows the formats and reads any of them, `lines` opens what they lie in, and each format has a
module of its own. What a reader yields is `pymllm.workloads.request.Request`, one after another.
"""

from __future__ import annotations
