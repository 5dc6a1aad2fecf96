"""Real files: what the headers say against what FFmpeg's decoder gives, and each sample's kind against the manifest."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections import Counter
from fractions import Fraction
from typing import Any

import av
import av.logging
import pytest

from keyglance.bitstream import Described, SampleFacts, SampleKind, StreamHeaders
from keyglance.video import Colour, ColourRange, StreamConfig
from tests.corpus import ROOT, Row, row, rows

pytestmark = [pytest.mark.corpus, pytest.mark.skipif(not rows(), reason=f"no corpus in {ROOT}")]
CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mpeg2video", "mpeg1video")
FILES = [each.file for each in rows() if each.facts["video_codec_profile_pixfmt"].split("/")[0] in CODECS]
RANGES = {0: ColourRange.UNSPECIFIED, 1: ColourRange.LIMITED, 2: ColourRange.FULL}
#: What PyAV raises on bad input is of many kinds, none of which says anything about the headers.
_ERRORS = (av.FFmpegError, OSError, ValueError, EOFError, LookupError, NotImplementedError)

#: The manifest's classes and ours. It looks for the first VCL unit of any kind, does not tell B from P in HEVC and VP8, and
#: takes the first frame of a VP9 superframe.
CLASSES = {
    "IDR": "start", "CRA": "start", "KEY": "start", "KEY+seq": "start", "RP-I": "start", "VOP-I": "start", "PIC-I": "start",
    "nonIDR-I": "I", "nonIDR-SI": "I", "nonIDR-P": "P", "nonIDR-SP": "P", "RP-P": "P", "VOP-P": "P", "PIC-P": "P",
    "nonIDR-B": "B", "VOP-B": "B", "PIC-B": "B", "TRAIL": "inter", "RADL/RASL": "inter", "INTER": "inter", "SHOWEX": "repeat",
    "noslice": "unknown", "nopic": "unknown", "bad": "unknown",
}  # fmt: skip
INTER = ("hevc", "vp8", "vp9", "av1")

#: Files whose kinds differ from the manifest's, and why ours are right.
KINDS_ARGUED = {
    "enc_cenc_wpt_122_keys.mp4": "encrypted slices: behind the clear unit type 12 slice headers are noise that cannot be read",
    "enc_clear_then_enc.mp4": "the same in the 8 encrypted samples",
    "enc_piff.mp4": "encrypted: the slice types are noise, of which we read what can be read",
    "fate_enc_3elist.mov": "the same",
    "mp4_annexb_unflagged_idr.mp4": "the sixth sample's first slice is P; behind it lies noise in which an IDR type occurs",
    "vp9_invalid_bitstream.webm": "the 18 'key' frames lack the synchronisation code, so they are none (refused, says the row)",
}

#: Files whose description differs from FFmpeg's first picture, and why ours is right; by file: (fields, reason).
DESCRIPTIONS_ARGUED: dict[str, tuple[set[str], str]] = {
    "crop_300x168_conformance.jsv": ({"size"}, "FFmpeg does not crop 26 pixels on the left, for alignment; 300 is the width"),
}


CONTAINER, RECORD = "the container says {}, the bitstream {}", "the configuration record says {}, the bitstream {}"
#: All files whose container, as FFmpeg tells it before decoding, or whose record disagrees with the bitstream. FFmpeg's pictures
#: side with the bitstream (`test_description`); of the last it decodes none.
DISAGREEMENTS = {
    "color_gamma22_fullrange.mp4": ["colour primaries: " + CONTAINER.format(5, 1), "colour transfer: " + CONTAINER.format(6, 4)],
    "fate_vp8_frame_size_change.webm": ["size: " + CONTAINER.format("1920x1080", "160x90")],
    "gopro_fusion_tmcd_gpmd_fullrange.mp4": ["colour range: " + CONTAINER.format("limited", "full")],
    "reschange_vp8_176_212_282.ivf": ["size: " + CONTAINER.format("352x288", "176x144")],
    "mp4_no_timescale_bad_matrix.mp4": ["chroma format: " + RECORD.format("400", "420")],
    "phone_hevc_metadata_track_first_rot.mp4": ["chroma format: " + RECORD.format("400", "420")],
    "phone_pixel_motionphoto_two_hevc_tracks_rot.mp4": ["chroma format: " + RECORD.format("400", "420")],
    "mp4_truncated_keyed.mp4": [
        "colour primaries: " + CONTAINER.format(1, 6),
        "colour matrix: " + CONTAINER.format(1, 6),
        "colour range: " + CONTAINER.format("limited", "full"),
    ],
}
#: Files without any header that can be read.
HEADERLESS = {
    "enc_webm_subsample.webm": "encrypted",
    "fate_ts_pmtchange.ts": "three pictures without a sequence header",
    "huge_declared_12336x12336_vp9.webm": "noise",
    "huge_declared_12336x48_vp9.webm": "noise",
    "init_segment_only.webm": "no samples",
    "ts_zero_length_video.ts": "no samples",
    "vp9_invalid_bitstream.webm": "no frame has its synchronisation code",
}


@functools.cache
def walked(file: str) -> tuple[Described, list[tuple[bool, SampleFacts]], Any]:
    """The description after the first intra sample; every sample's key flag and kind; FFmpeg's picture or None, profile, aspect.

    The description starts from the size and the colour that the container tells.
    """
    level = av.logging.get_level()
    av.logging.set_level(av.logging.PANIC)
    try:
        return _walked(row(file))
    finally:
        av.logging.set_level(level)


def _walked(each: Row) -> tuple[Described, list[tuple[bool, SampleFacts]], Any]:
    number = int(each.facts["video_stream_index"])
    with av.open(str(each.path), metadata_errors="replace") as container:
        stream = container.streams[number]
        context = stream.codec_context
        codes = (int(context.color_primaries), int(context.color_trc), int(context.colorspace))
        colour = Colour(*codes, RANGES[int(context.color_range)])
        codec, record = context.codec.canonical_name, context.extradata or b""
        headers = StreamHeaders(StreamConfig(codec, context.width, context.height, extradata=record, colour=colour))
        told = None
        found = []
        with contextlib.suppress(*_ERRORS):
            for packet in container.demux(stream):
                if packet.size:
                    found.append((packet.is_keyframe, headers.kind(bytes(packet))))
                    if told is None and found[-1][1].kind.intra:
                        told = headers.describe()
    frame = None
    with av.open(str(each.path), metadata_errors="replace") as container:
        container.streams[number].codec_context.thread_count = 1
        with contextlib.suppress(*_ERRORS):
            frame = next(container.decode(container.streams[number]), None)
        context = container.streams[number].codec_context
        return told or headers.describe(), found, (frame, context.profile or "", context.sample_aspect_ratio or Fraction(1))


@pytest.mark.parametrize("file", FILES)
def test_description(file: str) -> None:
    told, _, (frame, profile, aspect) = walked(file)
    if frame is None:
        pytest.skip("FFmpeg decodes no picture of it")
    config = told.config
    pixels = frame.format
    chroma = {(0, 0): "444", (1, 0): "422", (1, 1): "420"}.get((pixels.chroma_width(64) == 32, pixels.chroma_height(64) == 32))
    if pixels.is_rgb:
        chroma = "rgb"
    elif len(pixels.components) == 1:
        chroma = "400"
    differences = {
        name: (ours, theirs)
        for name, ours, theirs in (
            ("size", (config.width, config.height), (frame.width, frame.height)),
            ("bit depth", config.bit_depth, pixels.components[0].bits),
            ("chroma", config.chroma_format, chroma),
            ("profile", config.profile, profile),
            ("primaries", config.colour.primaries, int(frame.color_primaries)),
            ("transfer", config.colour.transfer, int(frame.color_trc)),
            ("matrix", config.colour.matrix, int(frame.colorspace)),
            ("range", config.colour.range, RANGES[int(frame.color_range)]),
            ("sample aspect", config.sample_aspect, aspect),
        )
        if ours != theirs
    }
    allowed, _ = DESCRIPTIONS_ARGUED.get(file, (set(), ""))
    assert set(differences) == allowed, differences
    assert told.coded_width >= config.width
    assert told.coded_height >= config.height
    assert told.problem == ""


@pytest.mark.parametrize("file", FILES)
def test_disagreements(file: str) -> None:
    told, _, _ = walked(file)
    assert list(told.disagreements) == DISAGREEMENTS.get(file, [])
    assert bool(told.problem) == (told.coded_width == 0) == (file in HEADERLESS)


def classes(text: str) -> Counter[str]:
    counted: Counter[str] = Counter()
    for part in filter(None, text.split(",")):
        name, _, count = part.rpartition(":")
        counted[CLASSES[name]] += int(count)
    return counted


def ours(codec: str, facts: SampleFacts) -> str:
    if facts.kind.random_access:
        return "start"
    if facts.kind in (SampleKind.UNKNOWN, SampleKind.REPEAT):
        return facts.kind.value
    return "inter" if codec in INTER else facts.kind.value


@pytest.mark.parametrize("file", FILES)
def test_kinds(file: str) -> None:
    _, found, _ = walked(file)
    facts = row(file).facts
    codec = facts["video_codec_profile_pixfmt"].split("/")[0]
    all_kinds = Counter(ours(codec, each) for _, each in found)
    key_kinds = Counter(ours(codec, each) for key, each in found if key)
    agree = all_kinds == classes(facts["all_bitstream_classes"]) and key_kinds == classes(facts["kf_bitstream_classes"])
    assert agree == (file not in KINDS_ARGUED), (key_kinds, all_kinds)


CHANGING = {each.file for each in rows() if "->" in each.facts["WxH"] and each.file in FILES}
#: The size changes by another sample entry, which no sample carries.
CHANGED_BY_CONTAINER = {"fate_h264_extradata_reload_multi_stsd.mov"}


@pytest.mark.parametrize("file", sorted(CHANGING - CHANGED_BY_CONTAINER))
def test_every_size_is_met_before_it_is_decoded(file: str) -> None:
    sizes = set()
    with av.open(str(row(file).path)) as container:
        stream = container.streams.video[0]
        headers = StreamHeaders(StreamConfig(stream.codec_context.codec.canonical_name, 0, 0))
        for packet in container.demux(stream):
            sizes |= {f"{each.width}x{each.height}" for each in headers.sequences(bytes(packet)) or ()}
    assert sizes == set(row(file).facts["WxH"].split("->")[1].split(","))


def test_finer_kinds() -> None:
    """What the manifest's classes do not tell apart."""
    counted = {
        file: Counter(each.kind for _, each in walked(file)[1]) for file in ("hevc_foreman_9_cra.mp4", "elst_iibbibb_444.mp4")
    }
    assert counted["hevc_foreman_9_cra.mp4"][SampleKind.CRA] == 9
    assert counted["elst_iibbibb_444.mp4"] == {SampleKind.IDR: 1, SampleKind.RECOVERY_POINT: 4, SampleKind.B: 8}
    assert sum(not each.shown for _, each in walked("web_stream_of_water_vp8_altref_audio.webm")[1]) == 5


@pytest.mark.parametrize(
    ("file", "fields"),
    [("camera_sony_a7m3_paff_1080i.mts", 26), ("mts_single_field_623663.mts", 1), ("fate_mixed_nal_coding.mp4", 0)],
)
def test_fields(file: str, fields: int) -> None:
    told, found, _ = walked(file)
    assert sum(each.field for _, each in found) == fields
    assert told.interlaced is True


@pytest.mark.parametrize("file", FILES)
def test_real_headers_broken_in_places(file: str) -> None:
    """No exception, whatever is wrong with them; repeatable by the file's name."""
    chance = random.Random(file)
    with av.open(str(row(file).path), metadata_errors="replace") as container:
        stream = container.streams[int(row(file).facts["video_stream_index"])]
        codec, record = stream.codec_context.codec.canonical_name, stream.codec_context.extradata or b""
        payloads = []
        with contextlib.suppress(*_ERRORS):
            payloads = [bytes(packet) for packet in itertools.islice(container.demux(stream), 3) if packet.size]
    for _ in range(40):
        config = StreamConfig(codec, 640, 360, extradata=broken(record, chance))
        headers = StreamHeaders(config)
        for payload in payloads:
            headers.kind(broken(payload[:4096], chance), whole=chance.random() < 0.5)
        assert isinstance(headers.describe(), Described)


def broken(sound: bytes, chance: random.Random) -> bytes:
    data = bytearray(sound)
    for _ in range(chance.randrange(4)):
        at = chance.randrange(min(len(data), 120) or 1)
        match chance.randrange(4):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[at : at + chance.randrange(9)]
            case 2:
                data[at:at] = chance.randbytes(chance.randrange(5))
            case _:
                data[at : at + 4] = chance.choice([b"\0\0\0\1", b"\xff\xff\xff\xff", b"\0\0\3\0", b"\0\0\0\0"])
    return bytes(data)
