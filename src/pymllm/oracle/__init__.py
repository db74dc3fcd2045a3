"""The judge: tells whether an implementation of KV cache memory keeps the specification, in plain Python."""
