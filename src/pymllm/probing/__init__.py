"""Probing a running server: requests, their answers with a warm cache and a cold one, and the laws of both."""
