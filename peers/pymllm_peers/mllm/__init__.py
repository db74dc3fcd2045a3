"""Adapters of mllm's caches and pools, whose interface ours is; a checkout is read when one is built."""
