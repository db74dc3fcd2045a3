"""The commands about running servers."""
