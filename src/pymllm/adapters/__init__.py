"""Adapters of implementations, this package's and others', behind one small protocol."""
