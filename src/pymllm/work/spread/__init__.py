"""Shards of a list of tasks over many machines: they go out to an executor, and their files come back."""
