"""Times of a slot allocator, through its adapter: for pytest-benchmark, and so for CodSpeed, too."""

from pymllm.adapters.registry import make_adapter
from pymllm.history.operations import Alloc, Clear


def test_fill_and_clear(benchmark):
    """Six slots, two at a time, and all of them back."""
    pool = make_adapter("my_package.my_adapter:MyCache")

    def fill_and_clear():
        for step in range(1, 4):
            pool.apply(step, Alloc(2))
        pool.apply(4, Clear())

    benchmark(fill_and_clear)
