"""Adapters of the indexes of aibrix and llm-d, in Go; a checkout is compiled when one is built."""
