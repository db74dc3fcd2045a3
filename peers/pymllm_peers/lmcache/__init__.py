"""Adapters of LMCache's allocators of chunks on the host; the package is imported when one is built."""
