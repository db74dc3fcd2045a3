"""Probes of a running server: requests against a warm and a cold cache, and the laws of the answers."""
