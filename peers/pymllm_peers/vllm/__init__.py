"""Adapters of vLLM's prefix cache; the package is imported when one is built."""
