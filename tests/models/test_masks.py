"""Maps that are looked at alike are looked at in one go, with the same result."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.heads.masks import Inside, alike

insides = st.sampled_from([Inside(0, 4, 0, 6), Inside(1, 3, 2, 5), Inside(2, 2, 0, 6)])


@given(st.dictionaries(st.integers(0, 9), insides, max_size=10))
def test_groups_come_to_the_same_as_maps_one_by_one(chosen: dict[int, Inside]) -> None:
    maps = np.arange(10 * 4 * 6, dtype=np.float32).reshape(10, 4, 6)
    numbers = sorted(chosen)
    expected = [maps[number, one.top : one.bottom, one.left : one.right].copy() for number in numbers for one in [chosen[number]]]
    found: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = {}
    groups = list(alike(numbers, [chosen[number] for number in numbers]))
    for here, there, inside in groups:
        for place, values in zip(range(here.start, here.stop), inside.of(maps[there]), strict=True):
            assert place not in found
            assert values.size == inside.area
            found[place] = values
    assert sorted(found) == list(range(len(numbers)))
    for place, values in found.items():
        np.testing.assert_array_equal(values, expected[place])
    # As few as can be: two neighbours that are alike are in one group.
    for (_, there, inside), (_, following, other) in itertools.pairwise(groups):
        assert there.stop != following.start or inside != other


def test_groups_are_views() -> None:
    maps = np.zeros((3, 4, 6))
    ((here, there, inside),) = alike([0, 1, 2], [Inside(1, 3, 2, 5)] * 3)
    inside.of(maps[there])[...] = 1
    assert maps.sum() == 3 * inside.area
    assert here == there == slice(0, 3)
