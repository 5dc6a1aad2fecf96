"""Times as containers give them, and as they can be relied on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyglance.timeline import repair

NAN = float("nan")


def fixed(pts, dts=None, rate=25.0):
    return repair(np.array(pts, dtype=np.float64), np.array(dts if dts is not None else pts, dtype=np.float64), rate)


def test_good_times_stay_as_they_are():
    line = fixed([0, 0.12, 0.04, 0.08], [-0.04, 0, 0.04, 0.08])
    assert line.times.tolist() == [0, 0.12, 0.04, 0.08]
    assert line.notes == ()
    assert line.step == 0.04


def test_without_any_times_pictures_are_counted_at_the_rate():
    line = fixed([NAN] * 3, [NAN] * 3, 50)
    assert line.times.tolist() == [0, 0.02, 0.04]
    assert "50 pictures a second" in line.notes[0]
    assert fixed([NAN] * 2, [NAN] * 2, None).times.tolist() == [0, 0.04]
    assert fixed([NAN] * 2, [NAN] * 2, 60000).times.tolist() == [0, 0.04]


def test_missing_times_are_filled_from_decoding_times_and_by_counting():
    assert fixed([0, NAN, 0.08], [0, 0.04, 0.08]).times.tolist() == [0, 0.04, 0.08]
    assert fixed([NAN, 1, NAN, NAN], [NAN] * 4).times == pytest.approx([0.96, 1, 1.04, 1.08])
    assert fixed([NAN] * 2, [5, 6]).times.tolist() == [5, 6]


def test_an_absurd_composition_offset_is_replaced():
    line = fixed([0, 1e9, 0.08, 0.12], [0, 0.04, 0.08, 0.12])
    assert line.times == pytest.approx([0, 0.04, 0.08, 0.12])
    assert "absurd" in line.notes[0]


def test_an_absurd_decoding_time_is_not_believed_either():
    line = fixed([604.0, 604.04, 604.08], [0, 604.04, 604.08])
    assert line.times == pytest.approx([604.0, 604.04, 604.08])


def test_times_that_begin_again_are_put_behind_each_other():
    second = np.arange(50) / 25
    line = fixed([*second, *second])
    assert line.times == pytest.approx(np.arange(100) / 25)
    assert "1 jumps" in line.notes[0]


def test_a_leap_of_hours_is_closed():
    assert np.ptp(fixed([0, 0.04, 95443.7, 95443.74]).times) == pytest.approx(0.12)


def test_times_pressed_into_nothing_are_not_believed():
    line = fixed(np.arange(1000) / 1e6)
    assert line.times[-1] == pytest.approx(39.96)
    assert "1000 samples within" in line.notes[0]


@given(
    st.lists(st.one_of(st.just(NAN), st.floats(-1e7, 1e7)), min_size=1, max_size=50),
    st.data(),
    st.one_of(st.none(), st.floats(0, 1e6)),
)
@settings(max_examples=300, deadline=None)
def test_the_result_is_always_finite_and_never_runs_far_backwards(pts, data, rate):
    dts = data.draw(st.lists(st.one_of(st.just(NAN), st.floats(-1e7, 1e7)), min_size=len(pts), max_size=len(pts)))
    line = fixed(pts, dts, rate)
    assert len(line.times) == len(pts)
    assert np.isfinite(line.times).all()
    assert np.isfinite(line.step)
    assert line.step > 0
