"""The radix trees under the prefix caches: keys, nodes, walks and splits, and who is evicted next."""
