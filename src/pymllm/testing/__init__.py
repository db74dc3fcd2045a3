"""What `pymllm.pytest_plugin` is made of: who may use a GPU, what a test used of it, and whether that leaks.

Nothing here loads torch or pynvml when it is imported, and nothing needs more than those two and pytest.
"""
