"""Whatever bytes come: no exception, no unbounded work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyglance.bitstream import StreamHeaders, describe, sample_kind
from keyglance.bitstream.headers import Described
from keyglance.video import StreamConfig

from . import build
from .build import Av1Sequence, H264Sps, HevcSps, Vui

H264 = (H264Sps(vui=Vui((1, 1), True, True, (1, 1, 1), 0)).unit(), build.h264_pps())
HEVC = (HevcSps(sub_layers=2, scaling=2, sets=[(2, 2)], vui=Vui((1, 1), True, True, (1, 1, 1), 0)).unit(), build.hevc_pps())
#: By codec: a configuration record and a sample, both sound.
SOUND = {
    "h264": (
        build.avcc(*H264),
        build.prefixed(*H264, build.sei(build.RECOVERY), build.h264_slice(2), build.h264_slice(2, first=1)),
    ),
    "hevc": (build.hvcc(*HEVC), build.prefixed(*HEVC, build.hevc_slice(1), build.hevc_slice(1, first=False))),
    "vp8": (b"", build.vp8_frame()),
    "vp9": (bytes([1, 0, 0, 0, 2, 31, 0xA2, 9, 16, 9, 0, 0]), build.vp9_superframe(build.vp9_frame(), build.vp9_frame("inter"))),
    "av1": (
        build.av1c(build.obu(1, Av1Sequence().data())),
        build.obu(1, Av1Sequence(timing=True, model=True).data()) + build.obu(6, build.av1_frame(Av1Sequence())),
    ),
    "mpeg4": (build.esds(build.mpeg4_layer()), build.mpeg4_object() + build.mpeg4_layer() + build.mpeg4_plane(0)),
    "mpeg2video": (
        build.mpeg2_sequence(),
        build.mpeg2_sequence() + build.mpeg2_extension() + build.mpeg2_picture(1) + build.mpeg2_coding() + build.MPEG2_SLICE,
    ),
}
CODECS = st.sampled_from(sorted(SOUND))


def everything(codec: str, record: bytes, payload: bytes) -> None:
    config = StreamConfig(codec, 640, 360, extradata=record)
    assert isinstance(describe(config, payload), Described)
    stream = StreamHeaders(config)
    for _ in range(2):
        stream.kind(payload)
        stream.kind(payload, whole=False)
        stream.sequences(payload)
        assert 8 <= stream.describe().config.bit_depth <= 16
    for size in (0, 1, 2, 4):
        sample_kind(config, payload, length_size=size)


def broken(sound: bytes, draw: Callable[[st.SearchStrategy[Any]], Any]) -> bytes:
    data = bytearray(sound)
    for _ in range(draw(st.integers(0, 3))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                data[at] = draw(st.sampled_from([0, 1, 3, 0x7F, 0x80, 0xFF]))
            case 2:
                del data[at:]
            case _:
                data[at:at] = draw(st.binary(max_size=8))
    return bytes(data)


@settings(max_examples=400)
@given(CODECS, st.data())
def test_sound_headers_broken_in_places(codec: str, data: st.DataObject) -> None:
    record, payload = SOUND[codec]
    everything(codec, broken(record, data.draw), broken(payload, data.draw))


@settings(max_examples=200)
@given(CODECS, st.binary(max_size=200), st.binary(max_size=200))
def test_noise(codec: str, record: bytes, payload: bytes) -> None:
    everything(codec, record, payload)


@pytest.mark.parametrize("codec", sorted(SOUND))
def test_all_beginnings_of_sound_headers(codec: str) -> None:
    record, payload = SOUND[codec]
    for length in range(len(record)):
        everything(codec, record[:length], payload)
    for length in range(len(payload)):
        everything(codec, record, payload[:length])


MEGABYTES = 4
PATTERNS = {
    "zeros": b"\0",
    "ones": b"\xff",
    "start codes": b"\0\0\1",
    "emulation prevention": b"\0\0\3",
    "units of one byte": b"\0\0\0\1\x06",
    "empty SEI": b"\0\0\1\x06\1\0",
    "lengths of one": b"\0\0\0\1\x67",
    "temporal delimiters": b"\x12\0",
    "groups": b"\0\0\1\xb8\0\0",
    "pictures": b"\0\0\1\0\0\x08\0",
}


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
@pytest.mark.parametrize("codec", sorted(SOUND))
@pytest.mark.timeout(60)
def test_megabytes_of_a_pattern_are_not_walked_twice(codec: str, pattern: str) -> None:
    """Linear work takes milliseconds here; quadratic work would not end within the test's timeout."""
    unit = PATTERNS[pattern]
    payload = unit * (MEGABYTES * (1 << 20) // len(unit))
    everything(codec, SOUND[codec][0], payload)
    everything(codec, payload[: 1 << 20], b"")
