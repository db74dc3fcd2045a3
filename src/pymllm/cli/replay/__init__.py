"""The verbs that read traces, and replay them."""
