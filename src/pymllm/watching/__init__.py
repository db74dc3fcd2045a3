"""The stream of cache events that a server tells, and the laws of whoever tells it."""
