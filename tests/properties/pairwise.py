"""Which pairs of settings some configurations leave out: a fault may need any two of them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product

from pymllm.history.files import Config

__all__ = ["missing_pairs"]

Setting = tuple[str, object]


def missing_pairs(
    configurations: Iterable[Config], values: Mapping[str, Sequence[object]]
) -> set[tuple[Setting, Setting]]:
    """Return every two settings of different dimensions that no configuration has both of."""
    met = [{key: config.get(key) for key in values} for config in configurations]
    return {
        ((one, first), (other, second))
        for one, other in combinations(values, 2)
        for first, second in product(values[one], values[other])
        if not any(config[one] == first and config[other] == second for config in met)
    }
