"""Worker processes, shards, and results that are kept."""
