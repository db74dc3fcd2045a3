"""The judge: what an implementation of KV cache memory must do, in plain Python and independent of all."""
