from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoder_pool.decoder import Packet
from decoder_pool.units import units
from keyglance.sampling import Run, SamplingPlan

RUN = Run(samples=(4, 5, 6, 7, 8), wanted=(5,), spare=3)
PLAN = SamplingPlan(frames=(), runs=(RUN,), gap_exceeded=False)


def packets(samples: range | list[int]) -> list[Packet]:
    return [Packet(sample, 10 * sample, 10, sample == 4) for sample in samples]


def test_a_unit_has_the_packets_of_its_run_in_decoding_order() -> None:
    (unit,) = units(PLAN, packets([8, 7, 6, 5, 4]))
    assert tuple(packet.sample for packet in unit.packets) == RUN.samples
    assert (unit.wanted, unit.spare) == ((5,), 3)


@given(st.sets(st.sampled_from([6, 7, 8])))
def test_spare_packets_that_are_not_there_are_left_out_up_to_the_first_hole(present: set[int]) -> None:
    (unit,) = units(PLAN, packets([4, 5, *sorted(present)]))
    reach = next((sample for sample in (6, 7, 8) if sample not in present), 9)
    assert tuple(packet.sample for packet in unit.packets) == tuple(range(4, reach))
    assert unit.spare == reach - 6


def test_a_packet_that_is_needed_must_be_there() -> None:
    with pytest.raises(KeyError):
        units(PLAN, packets([4, 6]))
