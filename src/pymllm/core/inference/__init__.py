"""The contexts in which the forward pass of an inference engine runs."""
