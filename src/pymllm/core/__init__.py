"""The core of an inference engine: what holds requests and their memory between forward passes."""
