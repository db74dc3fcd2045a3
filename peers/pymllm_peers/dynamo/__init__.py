"""Adapters of dynamo's index of KV blocks; the package is imported when one is built."""
