"""The GPU's memory: what is planned at start, line by line, checked against what is free, and compared with what is then used."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from decoder_pool.key import DecoderKey
from decoder_pool.nvdec.decoder import arena_slots
from decoder_pool.nvdec.gpu import bounds_of_key
from decoder_pool.nvdec.stream import Bounds
from models.backends.device import Precision
from models.backends.memory import ModelMemory
from server.lifecycle import StartError

_log = logging.getLogger(__name__)

MIB, GIB = 1 << 20, 1 << 30

#: A CUDA context with the kernels of cuDNN, cuBLAS and NVDEC takes about 0.6 GiB (H200). What of it is there before the first
#: check does not count again, so this is on the safe side.
CONTEXT = 640 * MIB
#: Of a hardware decoder: what it has of any size, and how many surfaces of its largest size it holds. Measured on an H200 for
#: H.264: 23, 45 and 149 MiB at most 1088, 2048 and 4096 pixels a side, for which this gives 24, 49 and 153.
_DECODER, _SURFACES = 14 * MIB, 5.8


class BudgetExceeded(StartError):
    """What is planned does not fit the GPU; the message has the table, the sum and the settings that change it."""


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """`size` bytes for something. `setting` names what makes it smaller, the empty string where nothing does."""

    name: str
    size: int
    setting: str = ""


class MemoryBudget:
    """The plan for one GPU.

    `memory_info` gives (free, total) in bytes, as `cudaMemGetInfo` does: of the whole device, so other processes on it count.
    `fraction` is the share of the memory free at the first `check` that may be planned for; the rest is for what needs more than
    estimated. Of `sharers` processes on one device, which may start at once, none plans for more than its part of the whole
    memory, since what is free then the others want as well. The lines are for what that first check does not see yet.
    """

    def __init__(
        self, lines: Iterable[BudgetLine], *, memory_info: Callable[[], tuple[int, int]], fraction: float, sharers: int = 1
    ) -> None:
        self._lines = {line.name: line for line in lines}
        self._memory_info = memory_info
        self._fraction = fraction
        self._sharers = sharers
        self._free: int | None = None  # before anything of the plan was there

    @property
    def lines(self) -> tuple[BudgetLine, ...]:
        """The plan."""
        return tuple(self._lines.values())

    @property
    def planned(self) -> int:
        """The sum, in bytes."""
        return sum(line.size for line in self.lines)

    def put(self, line: BudgetLine) -> None:
        """Takes the place of the line of that name, or is one more."""
        self._lines[line.name] = line

    def check(self) -> None:
        """Raises `BudgetExceeded` where the plan does not fit what was free at the first call."""
        free, total = self._memory_info()
        if self._free is None:
            self._free = free
        room, whose = min((self._free, "free"), (total // self._sharers, f"for each of {self._sharers} processes"))
        if self.planned > (allowed := int(room * self._fraction)):
            raise BudgetExceeded(
                f"the GPU's memory does not suffice: {_shown(self.planned)} are planned, {_shown(allowed)} may be "
                f"({self._fraction:g} of {_shown(room)} {whose}, gpu.memory_fraction)\n{self}\n{self._advice()}"
            )

    def used(self) -> int:
        """Bytes taken on the device since the first check, by anybody; 0 before it."""
        return 0 if self._free is None else self._free - self._memory_info()[0]

    def report(self) -> None:
        """Logs what is planned beside what is used, once all of it is there; a warning where it is more than planned."""
        used, planned = self.used(), self.planned * self._sharers  # what the others take is in it
        if used > planned:
            _log.warning(
                "GPU memory: %s used, more than the %s planned: another process may have taken some, or an estimate is too low",
                _shown(used),
                _shown(planned),
            )
        else:
            _log.info("GPU memory: %s used, %s planned", _shown(used), _shown(planned))

    def _advice(self) -> str:
        by_setting: dict[str, int] = {}
        for line in self.lines:
            if line.setting:
                by_setting[line.setting] = by_setting.get(line.setting, 0) + line.size
        shares = sorted(by_setting.items(), key=lambda item: -item[1])
        told = ", ".join(f"{setting} ({_shown(size)})" for setting, size in shares)
        return f"what can be made smaller: {told}; or fewer models (models.enabled)"

    def __str__(self) -> str:
        """A table: one line each, the sum last."""
        rows = [*((line.name, line.size) for line in self.lines), ("sum", self.planned)]
        name_width = max(len(name) for name, _ in rows)
        return "\n".join(f"  {name:<{name_width}}  {size / MIB:>10,.0f} MiB" for name, size in rows)


def decoder_memory(bounds: Bounds, bit_depth: int, chroma_format: str) -> int:
    """Bytes of a hardware decoder for pictures up to `bounds`: estimated."""
    samples = 3.0 if chroma_format == "444" else 1.5  # a pixel; hardware holds 4:0:0 as 4:2:0
    surface = bounds.width * bounds.height * samples * (1 if bit_depth == 8 else 2)
    return _DECODER + int(_SURFACES * surface)


def decoder_lines(
    warm: Mapping[DecoderKey, int], capabilities: Mapping[tuple[str, int, str], Bounds], *, limit: int, largest_class: int
) -> list[BudgetLine]:
    """Of the `warm` decoders by key, and of those that calls may have made later, up to `limit` in all.

    The latter count as the largest of 8 bits in 4:2:0 that there may be: a rare deeper one takes two to four times that.
    """
    lines = []
    for key, count in warm.items():
        bounds = bounds_of_key(key, capabilities[key.codec, key.bit_depth, key.chroma_format])
        name = f"decoders: {count} x {key.codec} {key.bit_depth} bit {key.chroma_format} up to {bounds.width}x{bounds.height}"
        lines.append(BudgetLine(name, count * decoder_memory(bounds, key.bit_depth, key.chroma_format), "gpu.warm"))
    largest = [
        bounds_of_key(DecoderKey(codec, depth, chroma, largest_class), driver)
        for (codec, depth, chroma), driver in capabilities.items()
        if (depth, chroma) == (8, "420")
    ]
    if (later := limit - sum(warm.values())) > 0 and largest:
        bounds = max(largest, key=lambda each: each.width * each.height)
        name = f"decoders made later: {later} up to {bounds.width}x{bounds.height}"
        lines.append(BudgetLine(name, later * decoder_memory(bounds, 8, "420"), "gpu.decoder_limit"))
    return lines


def arena_lines(size_classes: Sequence[int], counts: Sequence[int]) -> list[BudgetLine]:
    """Of the arena's slots by size class: exact, but for their alignment."""
    slots = arena_slots(size_classes, counts)
    return [
        BudgetLine(f"arena: {count} pictures of {side}", size * count, "gpu.arena_pictures")
        for side, (size, count) in zip(size_classes, slots.items(), strict=True)
    ]


def model_lines(name: str, memory: ModelMemory, buckets: Sequence[int], precision: Precision) -> list[BudgetLine]:
    """Of one model: input and output tensors (exact) and networks with their CUDA graphs (estimated)."""
    networks = len(buckets) * len(memory.inputs)
    return [
        BudgetLine(f"{name}: input and output tensors", memory.tensors(buckets, precision), "gpu.batch_buckets"),
        BudgetLine(f"{name}: {networks} networks", memory.networks(buckets, precision), "gpu.batch_buckets"),
    ]


def _shown(size: int) -> str:
    return f"{size / GIB:,.2f} GiB" if abs(size) >= GIB else f"{size / MIB:,.0f} MiB"
