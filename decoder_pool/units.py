"""From a sampling plan and its packets to what decoders take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from decoder_pool.decoder import DecodeUnit, Packet
from keyglance.sampling import Run, SamplingPlan


def units(plan: SamplingPlan, packets: Iterable[Packet]) -> tuple[DecodeUnit, ...]:
    """The plan's runs as a decoder takes them. `packets` hold every sample of every run, of spare ones as many as there are."""
    by_sample = {packet.sample: packet for packet in packets}
    return tuple(_unit(run, by_sample) for run in plan.runs)


def _unit(run: Run, by_sample: Mapping[int, Packet]) -> DecodeUnit:
    needed = len(run.samples) - run.spare
    packets = [by_sample[sample] for sample in run.samples[:needed]]
    for sample in run.samples[needed:]:
        if sample not in by_sample:
            break
        packets.append(by_sample[sample])
    return DecodeUnit(tuple(packets), run.wanted, len(packets) - needed)
