"""The stream of a server's cache events, and the laws of its producer."""
