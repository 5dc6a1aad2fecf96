"""Real files: this reader and FFmpeg (behind `decoder_pool.containers`) say the same, or a table says who is right."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from decoder_pool.containers import Indexer
from decoder_pool.limits import SourceLimits
from decoder_pool.shared_bytes import SharedBytes
from keyglance.errors import KeyglanceError
from keyglance.mp4 import BytesSource, CountingSource, Declined, as_the_container_says, read_index
from keyglance.video import SampleFlag, VideoIndex
from tests import corpus

pytestmark = [pytest.mark.corpus, pytest.mark.skipif(not corpus.rows(), reason=f"no corpus in {corpus.ROOT}")]

FILES = [
    row.file for row in corpus.rows() if row.facts["container"].startswith("mov") or row.file.endswith((".mp4", ".mov", ".m4a"))
]

PARSER = "FFmpeg: its parser's opinion of the picture; this reader: what the container flags (bitstream headers correct it)"
NO_LAST = "FFmpeg fills in a duration of 0 by a guessed rate; 0 means unknown here"
BITSTREAM = "not told by the container; the samples do, in headers that this reader does not read"
NO_PICTURE = "FFmpeg decodes no picture of it; this reader has the headers' word"
CONTAINER = "FFmpeg prefers the container's colour, this reader the bitstream's"
SUBSAMPLED = "the other reader calls chroma of full size none"

#: What may differ, by file and field, and why.
DIFFERENCES: dict[str, dict[str, str]] = {
    "bad_sample_table_1185230.mp4": {"keys": PARSER, "profile": NO_PICTURE, "colour": NO_PICTURE},
    "enc_uuid_frag_zero_keys.mp4": {"keys": PARSER, "profile": NO_PICTURE},
    "truncated_quicktime_596s.mov": {"keys": PARSER, "profile": NO_PICTURE},
    "fate_h264_attachment631.mp4": {"keys": PARSER},
    "frag_1199_frames_73KB.mp4": {"keys": PARSER},
    "h263_3gp_stss_lies.3gp": {"keys": PARSER, "sample_aspect": BITSTREAM},
    "fate_mixed_nal_coding.mp4": {"durations": NO_LAST},
    "multi_empty_video_track.mp4": {"durations": NO_LAST},
    "multi_fake_aux_tracks_10x12.mp4": {"durations": NO_LAST, "chroma_format": SUBSAMPLED},
    "phone_pixel_motionphoto_two_hevc_tracks_rot.mp4": {
        "durations": NO_LAST,
        "duration": "of variable rate; this reader takes the usual time between pictures for the last one",
    },
    "mp4_annexb_unflagged_idr.mp4": {"extradata": BITSTREAM},
    "odd_121x81_mpeg2_in_mp4.mp4": {"extradata": BITSTREAM},
    "multi_two_mjpeg_tracks.mov": {"profile": BITSTREAM},
    "prores_standard_180x144.mov": {"colour": BITSTREAM},
    "color_gamma22_fullrange.mp4": {"colour": CONTAINER},
    "phone_hevc_1080p_rot90_aac.mp4": {"colour": CONTAINER},
    "phone_hevc_metadata_track_first_rot.mp4": {"colour": CONTAINER},
    "enc_widevine_frag_unopenable.mp4": {"outcome": "FFmpeg cannot open it; its boxes tell that it is encrypted"},
    "mov_external_data_ref.mov": {"outcome": "FFmpeg finds no samples; they lie in another file"},
    "mov_quicktime_jpeg_nopackets.mov": {"outcome": "FFmpeg finds no samples; they lie in other files"},
    "elst_iibbibb_444.mp4": {"chroma_format": SUBSAMPLED},
    "fate_elst_empty_edit_5s.mp4": {"chroma_format": SUBSAMPLED},
    "fate_iibbibb_neg_ctts.mov": {"chroma_format": SUBSAMPLED},
    "fate_prores4444_alpha.mov": {"chroma_format": SUBSAMPLED},
    "fate_spherical_360.mp4": {"chroma_format": SUBSAMPLED},
    "h264_hi444_10bit_321x241.mp4": {"chroma_format": SUBSAMPLED},
    "hevc_rext_444_12bit_321x241.mp4": {"chroma_format": SUBSAMPLED},
    "hevc_rext_444_321x241.mp4": {"chroma_format": SUBSAMPLED},
    "tiny_1x1_h264_444.mp4": {"chroma_format": SUBSAMPLED},
}
#: What this reader leaves to FFmpeg.
DECLINED = {
    "fate_ext_lies_ivf_named_mp4.mp4",
    "fate_h264_extradata_reload_multi_stsd.mov",
    "fate_vc1_frag_ismv.ismv",
    "firefox_bug1079747.mp4",
    "mp4ff_fuzz_314k.mp4",
}

#: Whose samples lie in their own headers, by accident or design.
OVERLAPPING = {"enc_uuid_frag_zero_keys.mp4"}

Outcome = VideoIndex | str


@pytest.fixture(scope="module")
def ffmpeg() -> dict[str, Outcome]:
    async def all_of_them() -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        async with Indexer(size=2) as indexer:
            for file in FILES:
                with SharedBytes.of([corpus.row(file).read()]) as source:
                    try:
                        async with await indexer.open(source, SourceLimits(), time.monotonic() + 60) as video:
                            found[file] = video.index
                    except KeyglanceError as error:
                        found[file] = error.reason
        return found

    return asyncio.run(all_of_them())


def ours(data: bytes) -> Outcome:
    try:
        return read_index(BytesSource(data))
    except KeyglanceError as error:
        return error.reason


def differences(mine: VideoIndex, theirs: VideoIndex) -> dict[str, tuple[Any, Any]]:
    found: dict[str, tuple[Any, Any]] = {}

    def note(field: str, a: Any, b: Any) -> None:
        if a != b:
            found[field] = (a, b)

    for field in ("container", "size_bytes", "orientation", "track", "other_video_tracks", "truncated"):
        note(field, getattr(mine, field), getattr(theirs, field))
    for field in ("codec", "codec_tag", "width", "height", "sample_aspect", "extradata"):
        note(field, getattr(mine.config, field), getattr(theirs.config, field))
    for field in ("bit_depth", "chroma_format", "profile", "bits_per_coded_sample"):
        note(field, getattr(mine.config, field), getattr(theirs.config, field))
    # FFmpeg keeps the chroma location of a codec's standard to itself where the stream does not tell one.
    note("colour", *(replace(index.config.colour, chroma_location=None) for index in (mine, theirs)))
    if abs(mine.duration - theirs.duration) > 1e-4:
        found["duration"] = (mine.duration, theirs.duration)
    a, b = mine.samples, theirs.samples
    if len(a) != len(b):
        found["samples"] = (len(a), len(b))
        return found
    note("positions", a.position.tolist(), b.position.tolist())
    note("sizes", a.size.tolist(), b.size.tolist())
    if np.abs(a.time - b.time).max() > 1e-6:
        found["times"] = (a.time, b.time)
    if np.abs(a.duration - b.duration).max() > 1e-6:
        found["durations"] = (a.duration, b.duration)
    for field, flag in (
        ("keys", SampleFlag.KEY), ("outside", SampleFlag.OUTSIDE_EDIT), ("corrupt", SampleFlag.CORRUPT),
        ("encrypted", SampleFlag.ENCRYPTED),
    ):  # fmt: skip
        note(field, np.flatnonzero(a.having(flag)).tolist(), np.flatnonzero(b.having(flag)).tolist())
    return found


@pytest.mark.parametrize("file", FILES)
def test_both_readers_agree(file: str, ffmpeg: dict[str, Outcome]) -> None:
    data = corpus.row(file).read()
    if file in DECLINED:
        with pytest.raises(Declined):
            read_index(BytesSource(data))
        return
    mine, theirs = ours(data), ffmpeg[file]
    known = DIFFERENCES.get(file, {})
    if isinstance(mine, VideoIndex) and isinstance(theirs, VideoIndex):
        unknown = {field: values for field, values in differences(mine, theirs).items() if field not in known}
        assert not unknown
    elif "outcome" not in known:
        assert mine == theirs


@pytest.mark.parametrize("file", [file for file in FILES if file not in DECLINED])
def test_payloads_are_not_touched(file: str) -> None:
    source = CountingSource(BytesSource(corpus.row(file).read()))
    try:
        index = read_index(source, describe=as_the_container_says)
    except KeyglanceError:
        return
    if index.truncated or file in OVERLAPPING:
        return
    inside = 0
    starts = index.samples.position
    ends = starts + index.samples.size
    for start, end in source.touched():
        inside += int((np.minimum(ends, end) - np.maximum(starts, start)).clip(min=0).sum())
    # The first 8 bytes behind the header of a box are read with it, for those of 64 bits.
    assert inside <= 8 * (1 + len(source.reads))
    assert sum(size for _, size in source.reads) < 100_000 + 40 * len(starts)
