"""Former names of the room `pymllm.faults`: tables of faults that import from here still load."""
