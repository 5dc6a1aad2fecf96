"""The GPU's memory budget: its arithmetic, and what is said where it does not fit."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from decoder_pool.key import DecoderKey
from decoder_pool.nvdec.arena import FrameArena
from decoder_pool.nvdec.decoder import arena_slots
from decoder_pool.nvdec.stream import Bounds
from models.backends.device import Precision
from models.backends.memory import ModelMemory
from server.lifecycle import StartError
from server.memory_budget import (
    GIB,
    MIB,
    BudgetExceeded,
    BudgetLine,
    MemoryBudget,
    arena_lines,
    decoder_lines,
    decoder_memory,
    model_lines,
)
from tests.decoder_pool.fake_gpu import fake_gpu


class Card:
    """Memory that somebody takes."""

    def __init__(self, free: int) -> None:
        self.free = free

    def __call__(self) -> tuple[int, int]:
        return self.free, 80 * GIB


LINES = [
    BudgetLine("context", 640 * MIB),
    BudgetLine("decoders", 2 * GIB, "gpu.warm"),
    BudgetLine("a: networks", 3 * GIB, "gpu.batch_buckets"),
    BudgetLine("b: networks", 2 * GIB, "gpu.batch_buckets"),
]


def budget(card: Card, *, fraction: float = 0.9, sharers: int = 1) -> MemoryBudget:
    return MemoryBudget(LINES, memory_info=card, fraction=fraction, sharers=sharers)


def test_a_plan_that_fits_is_a_table_with_its_sum() -> None:
    plan = budget(Card(9 * GIB))
    plan.check()
    assert plan.planned == 7 * GIB + 640 * MIB
    assert str(plan).splitlines() == [
        "  context             640 MiB",
        "  decoders          2,048 MiB",
        "  a: networks       3,072 MiB",
        "  b: networks       2,048 MiB",
        "  sum               7,808 MiB",
    ]


def test_a_plan_that_does_not_fit_is_refused_with_the_table_the_sum_and_what_to_change() -> None:
    card = Card(8 * GIB)
    with pytest.raises(BudgetExceeded) as error:
        budget(card).check()
    assert isinstance(error.value, StartError)
    first, *table, advice = str(error.value).splitlines()
    assert first == (
        "the GPU's memory does not suffice: 7.62 GiB are planned, 7.20 GiB may be (0.9 of 8.00 GiB free, gpu.memory_fraction)"
    )
    assert "\n".join(table) == str(budget(card))
    assert advice == (
        "what can be made smaller: gpu.batch_buckets (5.00 GiB), gpu.warm (2.00 GiB); or fewer models (models.enabled)"
    )
    budget(card, fraction=1.0).check()


def test_of_several_processes_on_a_gpu_each_plans_for_its_part_also_one_that_comes_later() -> None:
    budget(Card(80 * GIB), sharers=8).check()
    with pytest.raises(
        BudgetExceeded, match=r"7\.20 GiB may be \(0\.9 of 8\.00 GiB for each of 10 processes, gpu\.memory_fraction\)"
    ):
        budget(Card(80 * GIB), sharers=10).check()
    budget(Card(9 * GIB), sharers=8).check()  # the others have theirs already
    with pytest.raises(BudgetExceeded, match=r"0\.9 of 8\.00 GiB free"):
        budget(Card(8 * GIB), sharers=2).check()


def test_what_several_processes_take_together_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    card = Card(80 * GIB)
    plan = budget(card, sharers=2)
    plan.check()
    card.free -= 15 * GIB
    with caplog.at_level(logging.INFO):
        plan.report()
        card.free -= GIB
        plan.report()
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]


def test_a_line_that_changes_is_checked_against_what_was_free_at_first() -> None:
    card = Card(10 * GIB)
    plan = budget(card)
    plan.check()
    card.free -= 7 * GIB  # by then most of it is taken
    plan.put(BudgetLine("a: networks", 4 * GIB, "gpu.batch_buckets"))
    plan.check()
    assert len(plan.lines) == len(LINES)
    plan.put(BudgetLine("a: networks", 5 * GIB, "gpu.batch_buckets"))
    with pytest.raises(BudgetExceeded, match=r"9\.62 GiB are planned, 9\.00 GiB may be"):
        plan.check()


@pytest.mark.parametrize(("used", "level"), [(7 * GIB, logging.INFO), (8 * GIB, logging.WARNING)])
def test_what_is_used_is_told_beside_what_was_planned(caplog: pytest.LogCaptureFixture, used: int, level: int) -> None:
    card = Card(20 * GIB)
    plan = budget(card)
    assert plan.used() == 0
    plan.check()
    card.free -= used
    with caplog.at_level(logging.INFO):
        plan.report()
    (record,) = caplog.records
    assert record.levelno == level
    assert f"{used / GIB:.2f} GiB used" in record.message
    assert "7.62 GiB planned" in record.message


def bounds(side: int) -> Bounds:
    return Bounds(48, 16, side, side, 1 << 20)


@pytest.mark.parametrize(("side", "measured"), [(1088, 23), (2048, 45), (4096, 149)])
def test_decoders_take_what_was_measured_or_a_little_more(side: int, measured: int) -> None:
    assert measured <= decoder_memory(bounds(side), 8, "420") / MIB <= 1.12 * measured


def test_deeper_and_finer_decoders_take_more() -> None:
    plain = decoder_memory(bounds(2048), 8, "420")
    assert plain < decoder_memory(bounds(2048), 10, "420") == decoder_memory(bounds(2048), 8, "444")
    assert decoder_memory(bounds(2048), 12, "444") > decoder_memory(bounds(2048), 8, "444")


def test_decoders_are_those_of_the_start_and_the_largest_that_may_come() -> None:
    capabilities = {
        ("h264", 8, "420"): bounds(4096),
        ("hevc", 8, "420"): bounds(8192),
        ("hevc", 10, "444"): bounds(8192),
    }
    warm = {DecoderKey("h264", 8, "420", 2048): 12, DecoderKey("h264", 8, "420", 8192): 1, DecoderKey("hevc", 10, "444", 2048): 2}
    lines = decoder_lines(warm, capabilities, limit=20, largest_class=8192)
    assert [(line.name, line.size, line.setting) for line in lines] == [
        ("decoders: 12 x h264 8 bit 420 up to 2048x2048", 12 * decoder_memory(bounds(2048), 8, "420"), "gpu.warm"),
        ("decoders: 1 x h264 8 bit 420 up to 4096x4096", decoder_memory(bounds(4096), 8, "420"), "gpu.warm"),
        ("decoders: 2 x hevc 10 bit 444 up to 2048x2048", 2 * decoder_memory(bounds(2048), 10, "444"), "gpu.warm"),
        ("decoders made later: 5 up to 8192x8192", 5 * decoder_memory(bounds(8192), 8, "420"), "gpu.decoder_limit"),
    ]
    assert [line.setting for line in decoder_lines(warm, capabilities, limit=15, largest_class=8192)] == ["gpu.warm"] * 3


def test_the_arena_takes_what_is_planned_for_it() -> None:
    classes, counts = (256, 512), (3, 2)
    arena = FrameArena(arena_slots(classes, counts), fake_gpu().cupy.empty)
    lines = arena_lines(classes, counts)
    assert [line.name for line in lines] == ["arena: 3 pictures of 256", "arena: 2 pictures of 512"]
    assert sum(line.size for line in lines) == arena.size


def test_models_have_tensors_and_networks() -> None:
    memory = ModelMemory(
        1000, {(8, 8): 192, (4, 4): 48}, np.dtype(np.float32), {(8, 8): 4, (4, 4): 4}, {(8, 8): 1 << 20, (4, 4): 1 << 18}
    )
    lines = model_lines("m", memory, (2, 4), Precision.FLOAT32)
    assert [line.name for line in lines] == ["m: input and output tensors", "m: 4 networks"]
    assert [line.size for line in lines] == [
        memory.tensors((2, 4), Precision.FLOAT32),
        memory.networks((2, 4), Precision.FLOAT32),
    ]
    assert {line.setting for line in lines} == {"gpu.batch_buckets"}
