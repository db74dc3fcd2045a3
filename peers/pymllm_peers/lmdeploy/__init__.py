"""Adapters of lmdeploy's block trie and block allocator; a checkout is read when one is built."""
