"""Shards of tasks sent to an executor for many machines, and the files that come back."""
