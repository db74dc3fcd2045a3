"""Adapters of sglang's caches and allocators; the package is imported when one is built."""
