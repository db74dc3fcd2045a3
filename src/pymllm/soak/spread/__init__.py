"""Campaigns over many machines: shards go out to an executor, their ledgers come back."""
