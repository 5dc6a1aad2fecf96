from __future__ import annotations

import asyncio

import numpy as np
import pytest

from decoder_pool.decoder import DecoderBroken, DecodeUnit, Packet
from decoder_pool.fake import FakeDecoder, FakeFactory, FakeScript, fake_picture
from decoder_pool.key import DecoderKey
from decoder_pool.shared_bytes import SharedBytes
from keyglance.video import StreamConfig

CONFIG = StreamConfig("h264", 33, 17)
UNIT = DecodeUnit((Packet(0, 0, 1, True), Packet(1, 0, 1, False), Packet(2, 0, 1, False)), (0, 2))


async def made(factory: FakeFactory) -> FakeDecoder:
    decoder = factory.make(DecoderKey.of(CONFIG, (64,)))
    await decoder.start()
    await decoder.configure(CONFIG)
    return decoder


@pytest.mark.parametrize(
    ("chroma", "depth", "shapes"),
    [
        ("420", 8, [(17, 33), (9, 17), (9, 17)]),
        ("422", 10, [(17, 33), (17, 17), (17, 17)]),
        ("444", 12, [(17, 33)] * 3),
        ("rgb", 8, [(17, 33)] * 3),
        ("400", 16, [(17, 33)]),
    ],
)
def test_pictures_have_the_planes_of_their_stream(chroma, depth, shapes):
    config = StreamConfig("h264", 33, 17, bit_depth=depth, chroma_format=chroma)
    picture = fake_picture(5, config)
    assert [plane.shape for plane in picture.planes] == shapes
    assert {plane.dtype for plane in picture.planes} == {np.dtype(np.uint8 if depth == 8 else np.uint16)}
    again, other = fake_picture(5, config), fake_picture(6, config)
    assert all(np.array_equal(a, b) for a, b in zip(picture.planes, again.planes, strict=True))
    assert not np.array_equal(picture.planes[0], other.planes[0])


async def test_it_gives_what_its_script_says():
    factory = FakeFactory(FakeScript(damaged=frozenset({0}), missing=frozenset({2})))
    decoder = await made(factory)
    with SharedBytes.of([b"x"]) as packets:
        damaged, missing = [decoded async for decoded in decoder.decode(UNIT, packets)]
        assert (damaged.sample, damaged.damaged, damaged.picture) == (0, True, None)
        assert (missing.sample, missing.damaged, missing.picture) == (2, False, None)
        factory.script = FakeScript(breaks_at_unit=2)
        with pytest.raises(DecoderBroken):
            await anext(decoder.decode(UNIT, packets))
    assert not decoder.settled
    with pytest.raises(DecoderBroken):
        await decoder.settle()
    await decoder.close()
    await decoder.close()
    counts = factory.counts
    assert (counts.started, counts.configured, counts.units, counts.pictures, counts.closed) == (1, 1, 2, 2, 1)


async def test_a_hang_ends_when_it_is_closed():
    decoder = await made(FakeFactory(FakeScript(hangs_at_unit=1)))
    with SharedBytes.of([b"x"]) as packets:
        task = asyncio.ensure_future(anext(decoder.decode(UNIT, packets)))
        await asyncio.sleep(0.005)
        assert not task.done()
        with pytest.raises(RuntimeError, match="busy"):
            await decoder.configure(CONFIG)
        await decoder.close()
        with pytest.raises(DecoderBroken):
            await task


async def test_an_abandoned_unit_may_not_go_on_beside_the_next():
    decoder = await made(FakeFactory())
    with SharedBytes.of([b"x"]) as packets:
        old = decoder.decode(UNIT, packets)
        await anext(old)
        await anext(decoder.decode(UNIT, packets))
        with pytest.raises(RuntimeError, match="while it decodes unit 2"):
            await anext(old)
