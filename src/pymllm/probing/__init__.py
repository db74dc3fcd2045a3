"""Probing a running server: its answers with a warm cache and a cold one, and the laws of both."""
