"""The commands that read and replay traces."""
