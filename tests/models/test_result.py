"""Scores over an array are the mapping that they stand for."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.backends.fake import fake_manifest
from models.manifest import LabelSpec
from models.result import FrameResult, LabelNames, LabelScores

NAMES = LabelNames(["b", "a", "c"])
scores_of_three = st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3)


def scores(*values: float, names: LabelNames = NAMES) -> LabelScores:
    return LabelScores(names, np.array(values, np.float32))


@given(scores_of_three)
def test_it_is_the_dictionary_that_it_stands_for(values: list[float]) -> None:
    found, plain = scores(*values), dict(zip(NAMES.names, values, strict=True))
    assert found == plain
    assert plain == found
    assert FrameResult(found) == FrameResult(plain)
    assert list(found) == list(plain)
    assert list(found.items()) == list(plain.items())
    assert list(found.values()) == list(plain.values())
    assert found.keys() == plain.keys()
    assert len(found) == 3
    assert {name: found[name] for name in found} == plain
    assert all(type(score) is float for score in (found["a"], *found.values()))
    assert found.get("d", 0.5) == 0.5
    assert "a" in found
    assert "d" not in found
    with pytest.raises(KeyError):
        found["d"]
    assert repr(found) == f"LabelScores({plain})"


@given(scores_of_three, scores_of_three)
def test_equal_where_names_and_values_are(one: list[float], other: list[float]) -> None:
    assert (scores(*one) == scores(*other)) == (one == other)
    assert (scores(*one) == scores(*one, names=LabelNames("bac"))) is True
    assert (scores(*one) == scores(*one, names=LabelNames("bad"))) is False
    assert scores(*one) == LabelScores(LabelNames("cab"), np.array([one[2], one[1], one[0]]))
    assert scores(*one) != [*one]


def test_no_one_hashes_it() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(scores(1, 2, 3))


def test_an_array_in_a_models_order() -> None:
    names = LabelNames.of(fake_manifest("m", [LabelSpec("b"), LabelSpec("a"), LabelSpec("c")]))
    assert names == NAMES
    found = scores(0.1, 0.2, 0.3)
    assert names.array_of(found) is found.array
    assert names.array_of({"a": 0.2, "b": 0.1}).tolist() == [0.1, 0.2, 0.0]
    assert names.array_of(scores(1, 2, 3, names=LabelNames("abc"))).tolist() == [2, 1, 3]
    with pytest.raises(ValueError, match="labels that are not known: d, e"):
        names.array_of({"a": 1, "e": 0, "d": 0})
    with pytest.raises(ValueError, match="labels come twice: x"):
        LabelNames(["x", "y", "x"])


def test_sent_to_another_process_a_row_is_no_more_than_itself() -> None:
    batch = np.zeros((64, 3), np.float32)
    batch[5] = (0.1, 0.2, 0.3)
    sent = pickle.dumps(LabelScores(NAMES, batch[5]))
    assert len(sent) < 500
    assert pickle.loads(sent) == scores(0.1, 0.2, 0.3)
