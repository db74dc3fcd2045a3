"""The stream of a server's cache events, and the laws that its producer must keep."""
