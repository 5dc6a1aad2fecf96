from dataclasses import replace

from loadtest.measure import Footprint
from loadtest.soak import differences

BEFORE = Footprint(processes=6, threads=60, descriptors=120, memory_mib=1000.0)


def test_the_same_is_no_difference() -> None:
    assert differences(BEFORE, BEFORE, (3, 3)) == []


def test_a_decoder_more_is_a_process_more() -> None:
    assert differences(BEFORE, replace(BEFORE, processes=7), (3, 4)) == []
    (found,) = differences(BEFORE, replace(BEFORE, processes=7), (3, 3))
    assert found.startswith("processes: 6 before, 7 after")


def test_a_lost_worker_is_found() -> None:
    (found,) = differences(BEFORE, replace(BEFORE, processes=5), (3, 3))
    assert found.startswith("processes")


def test_what_grew_is_named() -> None:
    grown = replace(BEFORE, threads=90, descriptors=300, memory_mib=1200.0)
    assert [line.split(":")[0] for line in differences(BEFORE, grown, (3, 3))] == ["threads", "descriptors", "memory"]
