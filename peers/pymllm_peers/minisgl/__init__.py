"""Adapters of mini-sglang's cache manager, prefix caches and table; a checkout is read when one is built."""
