"""Worker processes, shards of work, and kept results."""
