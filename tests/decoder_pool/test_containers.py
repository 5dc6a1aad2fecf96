"""The indexer: real files by their manifest, workers that misbehave, and what is refused by name."""

import asyncio
import io
import json
import os
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import psutil
import pytest

from decoder_pool.containers import Indexer
from decoder_pool.limits import SourceLimits
from decoder_pool.shared_bytes import SharedBytes
from keyglance.errors import (
    CorruptVideo,
    DeadlineExceeded,
    Draining,
    EmptySource,
    Encrypted,
    InternalError,
    KeyglanceError,
    NotAVideo,
    NoVideoStream,
    RequestError,
    TooLarge,
    WorkerLost,
)
from keyglance.video import ColourRange, Orientation, SampleFlag
from loadtest.clips import encode
from tests import corpus

LIMITS = SourceLimits()


def soon(seconds=30.0):
    return time.monotonic() + seconds


def pictures(count=25, size=(48, 64)):
    ramp = np.linspace(0, 255, size[1], dtype=np.uint8)
    for n in range(count):
        yield np.stack([np.broadcast_to(np.roll(ramp, n * 3), size)] * 3, axis=-1).copy()


@pytest.fixture
async def indexer():
    async with Indexer(size=1) as made:
        yield made


async def index_of(indexer, data, limits=LIMITS):
    with SharedBytes.of([data]) as source:
        async with await indexer.open(source, limits, soon()) as video:
            return video.index


# --- the corpus -------------------------------------------------------------------------------------------------------


async def _index_corpus():
    outcomes = {}
    async with Indexer(size=2) as indexer:

        async def one(row):
            with SharedBytes.of([row.read()]) as source:
                try:
                    async with await indexer.open(source, LIMITS, soon(60)) as video:
                        packets, listed = await video.packets(range(len(video.index.samples)))
                        with packets:
                            assert len(listed) == len(video.index.samples)
                        outcomes[row.file] = video.index
                except KeyglanceError as error:
                    outcomes[row.file] = error

        for at in range(0, len(corpus.rows()), 8):
            await asyncio.gather(*(one(row) for row in corpus.rows()[at : at + 8]))
        assert indexer.lost == 0
        assert indexer.alive == 2
    return outcomes


@pytest.fixture(scope="module")
def outcomes():
    return asyncio.run(_index_corpus())


#: Rows that say "refuse" and whose container is sound: only decoding tells.
LEFT_TO_THE_DECODER = {
    "bad_sample_table_1185230.mp4": "three samples, all of them garbage",
    "fate_ts_pmtchange.ts": "three packets of MPEG-2 without a sequence header",
    "h264_fmo_unsupported.264": "flexible macroblock order: a known container and codec, no picture",
    "h264_fuzz_testcase.264": "its parameter sets are broken, not missing",
    "huge_declared_12336x48_vp9.webm": "within the limits of size; its bitstream is broken",
    "mts_single_field_623663.mts": "one field alone",
    "theora_bug504843_0x0.ogv": "no size in its headers",
    "truncated_quicktime_596s.mov": "one broken sample",
    "vp9_invalid_bitstream.webm": "51 samples, none of them VP9",
}
#: Rows whose reason is argued: what the file is in truth.
ARGUED = {
    "enc_av1_cbcs_garbage.mp4": "its only fragment uses sample entry 2 (tfhd), av01 and clear: 24 good pictures, no garbage",
    "enc_uuid_frag_zero_keys.mp4": "entry avc1, no protection; the uuid box of zeros shifted the data: broken, so the decoder's",
}
#: Columns that differ, and why.
DIFFERENT = {
    "fate_elst_3_1ctts.mov": "48 samples are stored; the edit list repeats 26 of them",
    "fate_elst_3_entries.mov": "48 samples are stored; the edit list repeats 26 of them",
    "h263_3gp_stss_lies.3gp": "4 of its 5 key flags are on predicted pictures, and are taken off",
    "h263_all_flagged_key.h263": "111 of its 122 key flags are on predicted pictures, and are taken off",
    "mp4_no_timescale_bad_matrix.mp4": "a matrix without inverse is no rotation",
    "rotate_and_reflect_matrix.mp4": "the manifest's rotation leaves out the mirroring",
}


@pytest.mark.corpus
@pytest.mark.skipif(not corpus.rows(), reason=f"no corpus in {corpus.ROOT}")
class TestCorpus:
    @pytest.mark.parametrize("row", corpus.rows(), ids=lambda row: row.file)
    def test_every_row_gets_what_it_expects(self, outcomes, row):
        outcome = outcomes[row.file]
        if isinstance(outcome, KeyglanceError):
            assert isinstance(outcome, RequestError), outcome
        if row.file in ARGUED or row.file in LEFT_TO_THE_DECODER:
            assert not isinstance(outcome, KeyglanceError)
        elif row.expect == "ok":
            assert not isinstance(outcome, KeyglanceError), outcome
        elif row.expect == "refuse":
            assert isinstance(outcome, RequestError)
            assert not row.reason or outcome.reason == row.reason

    @pytest.mark.parametrize("row", [r for r in corpus.rows() if r.expect == "ok"], ids=lambda row: row.file)
    def test_indexes_agree_with_the_manifest(self, outcomes, row):
        index = outcomes[row.file]
        samples, facts = index.samples, row.facts
        width, height = facts["WxH"].split()[0].split("x")
        assert (index.config.width, index.config.height) == (int(width), int(height))
        assert index.container == facts["container"]
        assert index.config.codec == facts["video_codec_profile_pixfmt"].split("/")[0]
        assert index.config.sample_aspect == Fraction(facts["sar"] or 1)
        shown = ~samples.having(SampleFlag.OUTSIDE_EDIT)
        assert abs(samples.time[shown].min()) < 1e-9
        assert 0 < index.duration < 400
        assert samples.time[shown].max() <= index.duration + 1e-9
        if row.file not in DIFFERENT:
            assert len(samples) == row.number("n_packets")
            assert int(samples.having(SampleFlag.KEY).sum()) == row.number("n_keyframe_packets")
            assert int((~shown).sum()) == row.number("discard_packets")
            assert index.orientation == Orientation(-int(facts["rotation"]) % 360)
        levels, space, primaries, transfer = (int(n) for n in facts["range_space_prim_trc"].split("/"))
        assert index.config.colour.matrix == space
        full = "/yuvj" in facts["video_codec_profile_pixfmt"]  # the bitstream's word wins over the container's
        levels = 2 if full else levels
        assert index.config.colour.range is [ColourRange.UNSPECIFIED, ColourRange.LIMITED, ColourRange.FULL][levels]
        assert (index.config.colour.primaries, index.config.colour.transfer) == (primaries or 2, transfer or 2)

    def test_sizes_of_all_samples_fit_what_ffmpeg_reads(self, outcomes):
        for name in ("bikes_640x272.mp4", "web_flower_vp8.webm", "hls_segment_hevc10.ts", "fate_prores_bz2_mkv.mkv", "vp3.avi"):
            with av.open(str(corpus.row(name).path)) as container:
                sizes = [packet.size for packet in container.demux(video=0) if packet.size]
            assert outcomes[name].samples.size.tolist() == sizes

    def test_positions_point_at_the_payload(self, outcomes):
        row = corpus.row("bikes_640x272.mp4")
        index, data = outcomes[row.file], row.read()
        assert (index.samples.position >= 0).all()
        with av.open(str(row.path)) as container:
            for packet, at in zip(container.demux(video=0), index.samples.position, strict=False):
                assert data[at : at + packet.size] == bytes(packet)

    def test_lesson_1_the_edit_lists_preroll_is_marked(self, outcomes):
        samples = outcomes["elst_only_preroll_sync.mp4"].samples
        assert samples.having(SampleFlag.OUTSIDE_EDIT).tolist() == [True] + [False] * 16
        assert samples.time[0] < 0
        assert outcomes["elst_quicktime_trim_discard.mov"].duration < 0.1

    def test_lesson_6_encryption_is_told_by_boxes_where_packets_do_not(self, outcomes):
        for name in ("enc_clear_then_enc.mp4", "enc_webm_subsample.webm", "fate_enc_wmv_drm.wmv"):
            assert isinstance(outcomes[name], Encrypted)
        assert "48 of 48" in outcomes["fate_enc_3elist.mov"].message
        assert not outcomes["enc_cbcs_decrypted_twin.mp4"].samples.having(SampleFlag.ENCRYPTED).any()

    def test_lesson_7_what_it_is_instead_is_named(self, outcomes):
        for name, words in {
            "playlist_hls_absolute_uris.m3u8": "HLS",
            "image_iphone_heic_tiled.heic": "HEIC",
            "image_avif_loop_forever.avif": "AVIF",
            "jpeg_named_gif.gif": "JPEG",
            "swf_flv1_poc.swf": "SWF",
            "mp4ff_fuzz_314k.mp4": "text",
            "audio_mp3_cover_1400.mp3": "MP3",
        }.items():
            assert words in outcomes[name].message

    def test_lesson_9_cheap_to_send_dear_to_look_at(self, outcomes):
        assert len(outcomes["long_6min_10883_frames_446KB.mp4"].samples) == 10883
        assert outcomes["huge_declared_57789x190.gif"].facts["what"] == "pixels on a side"
        assert outcomes["huge_declared_12336x12336_vp9.webm"].facts["what"] == "pixels"

    def test_lesson_10_matrices(self, outcomes):
        assert outcomes["rotate_and_reflect_matrix.mp4"].orientation == Orientation(270, True)
        assert outcomes["mp4_no_timescale_bad_matrix.mp4"].orientation == Orientation()

    def test_what_containers_exaggerate_is_not_believed(self, outcomes):
        assert outcomes["frag_duration_3900s.mp4"].duration == pytest.approx(8.0, abs=0.1)
        assert outcomes["mp4_annexb_unflagged_idr.mp4"].truncated
        assert outcomes["mp4_annexb_unflagged_idr.mp4"].duration < 1
        assert outcomes["theora_start_604s.ogv"].duration == pytest.approx(4.17, abs=0.1)
        assert outcomes["huge_composition_offset.mp4"].duration == pytest.approx(17.25, abs=0.5)

    def test_other_tracks_are_counted(self, outcomes):
        assert outcomes["phone_pixel_motionphoto_two_hevc_tracks_rot.mp4"].other_video_tracks == 1
        assert outcomes["multi_two_mjpeg_tracks.mov"].other_video_tracks == 1
        assert outcomes["multi_empty_video_track.mp4"].other_video_tracks == 0
        assert outcomes["video_with_cover_art.mp4"].other_video_tracks == 0

    def test_a_second_configuration_travels_in_the_samples(self, outcomes):
        index = outcomes["fate_h264_extradata_reload_multi_stsd.mov"]
        assert (index.samples.position == -1).all()
        assert index.config.extradata.startswith(b"\0\0\0\1")

    async def test_it_decodes_from_any_keyframe(self):
        row = corpus.row("fate_h264_extradata_reload_multi_stsd.mov")
        async with Indexer(size=1) as indexer:
            with SharedBytes.of([row.read()]) as source:
                async with await indexer.open(source, LIMITS, soon()) as video:
                    memory, packets = await video.packets(range(len(video.index.samples)))
        sizes = []
        with memory:
            for start in np.flatnonzero(video.index.samples.having(SampleFlag.KEY)):
                context = av.CodecContext.create("h264", "r")
                context.extradata = video.index.config.extradata
                packet = packets[start]
                frames = context.decode(av.Packet(memory.read(packet.offset, packet.size))) + context.decode(None)
                sizes += [(frame.width, frame.height) for frame in frames]
        assert sizes == [(256, 128), (128, 128)]


# --- own clips --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "container", "name"),
    [
        ("libx264", "mp4", "h264"),
        ("libx264", "matroska", "h264"),
        ("libx264", "mpegts", "h264"),
        ("libx264", "flv", "h264"),
        ("libx264", "h264", "h264"),
        ("libx265", "mov", "hevc"),
        ("libx265", "hevc", "hevc"),
        ("libvpx", "webm", "vp8"),
        ("libvpx", "ivf", "vp8"),
        ("mpeg4", "avi", "mpeg4"),
        ("mpeg4", "3gp", "mpeg4"),
        ("mjpeg", "mjpeg", "mjpeg"),
    ],
)
async def test_known_containers(indexer, codec, container, name):
    pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    index = await index_of(indexer, encode(pictures(), codec=codec, container=container, keyframes=(0, 10), pixel_format=pixels))
    assert index.config.codec == name
    assert (index.config.width, index.config.height) == (64, 48)
    assert len(index.samples) == 25
    keys = np.flatnonzero(index.samples.having(SampleFlag.KEY)).tolist()
    assert keys == (list(range(25)) if codec == "mjpeg" else [0, 10])
    assert index.duration == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
async def test_rotation_is_clockwise(indexer, degrees):
    index = await index_of(indexer, encode(pictures(3), rotation=degrees))
    assert index.orientation == Orientation(degrees)


async def test_b_frames_keep_their_own_times(indexer):
    index = await index_of(indexer, encode(pictures(), b_frames=2))
    assert sorted(index.samples.time) == pytest.approx(np.arange(25) / 25)
    assert (np.diff(index.samples.time) < 0).any()


async def test_packets_are_the_samples_payloads(indexer):
    data = encode(pictures(), container="matroska", keyframe_interval=5)
    with av.open(io.BytesIO(data)) as container:
        truth = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    with SharedBytes.of([data]) as source:
        video = await indexer.open(source, LIMITS, soon())
    async with video:
        memory, packets = await video.packets([7, 8, 3, 8])
        with memory:
            assert [memory.read(p.offset, p.size) for p in packets] == [truth[n] for n in (7, 8, 3, 8)]
            assert memory.size == sum(len(truth[n]) for n in (7, 8, 3))
        assert [p.sample for p in packets] == [7, 8, 3, 8]
        with pytest.raises(IndexError, match="sample 25 of a video of 25"):
            await video.packets([25])
    with pytest.raises(RuntimeError, match="closed"):
        await video.packets([0])


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", EmptySource, "0 bytes"),
        (b"\0" * 1000, NotAVideo, "all zero"),
        (b"hello, world\n" * 20, NotAVideo, "text"),
        (b"\xef\xbb\xbfcaf\xc3\xa9", NotAVideo, "text"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", NotAVideo, "ffconcat"),
        (b"#EXTM3U\nhttp://127.0.0.1/a.ts\n", NotAVideo, "HLS"),
        (b"<?xml version='1.0'?><MPD></MPD>", NotAVideo, "DASH"),
        (b"%PDF-1.7\n", NotAVideo, "PDF"),
        (b"PK\x03\x04" + bytes(40), NotAVideo, "ZIP"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), NotAVideo, "PNG"),
        (b"RIFF\0\0\0\0WEBPVP8 ", NotAVideo, "WebP"),
        (b"CWS\x09" + bytes(40), NotAVideo, "SWF"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40), NotAVideo, "HEIC"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp41" + bytes(40), NotAVideo, "broken mov"),
        (b"RIFF\x24\0\0\0WAVEfmt " + bytes(40), NoVideoStream, "WAVE"),
        (b"fLaC" + bytes(40), NoVideoStream, "FLAC"),
        (b"ID3\x04" + bytes(40), NoVideoStream, "MP3"),
    ],
)
async def test_what_is_refused_is_named(indexer, data, error, words):
    with pytest.raises(error, match=words):
        await index_of(indexer, data)


async def test_random_bytes_are_no_video(indexer):
    for seed in range(40):
        data = np.random.default_rng(seed).bytes(20_000)
        with pytest.raises((NotAVideo, NoVideoStream)):
            await index_of(indexer, data)


async def test_damaged_files_never_cost_a_worker(indexer):
    whole = encode(pictures(50), keyframe_interval=10)
    rng = np.random.default_rng(1)
    for _ in range(60):
        data = bytearray(whole[: int(rng.integers(1, len(whole) + 1))])
        for at in rng.integers(0, len(data), 20):
            data[at] = int(rng.integers(256))
        try:
            await index_of(indexer, bytes(data))
        except RequestError:
            continue
    assert indexer.lost == 0


async def test_limits(indexer):
    data = encode(pictures(), keyframes=(0, 10))
    for limits, what in [
        (SourceLimits(bytes=100), "bytes"),
        (SourceLimits(pixels=64 * 48 - 1), "pixels"),
        (SourceLimits(side=63), "pixels on a side"),
        (SourceLimits(seconds=0.5), "seconds"),
        (SourceLimits(samples=24), "samples"),
    ]:
        with pytest.raises(TooLarge) as caught:
            await index_of(indexer, data, limits)
        assert caught.value.facts["what"] == what
    assert len((await index_of(indexer, data, SourceLimits(pixels=64 * 48, samples=25))).samples) == 25
    assert indexer.lost == 0


async def test_times_that_cannot_be_do_not_cost_a_worker(indexer):
    whole = encode(pictures(), b_frames=0)
    at = whole.index(b"stts") + 12  # the first entry's delta is behind its count
    for delta in (0, 1, 0xFFFFFFFF, 0x7FFFFFFF):
        index = await index_of(indexer, whole[:at] + delta.to_bytes(4, "big") + whole[at + 4 :])
        assert np.isfinite(index.samples.time).all()
        assert 0 < index.duration <= 3600
    assert indexer.lost == 0


async def test_sizes_that_no_machine_has_do_not_cost_a_worker(indexer):
    whole = encode(pictures(), codec="libvpx", container="ivf")
    second = 32 + 12 + int.from_bytes(whole[32:36], "little")
    for size in (0x7FFFFFFF, 0xFFFFFFFF, 0x40000000):
        index = await index_of(indexer, whole[:second] + size.to_bytes(4, "little") + whole[second + 4 :])
        assert index.truncated
    assert indexer.lost == 0


async def test_audio_alone_is_no_video(indexer):
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        stream = output.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), dtype=np.float32), format="fltp", layout="mono")
        frame.rate = 44100
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            output.mux(packet)
    with pytest.raises(NoVideoStream, match="audio"):
        await index_of(indexer, buffer.getvalue())


async def test_a_container_without_samples(indexer):
    whole = encode(pictures(), muxing={"movflags": "frag_keyframe+empty_moov"})
    with pytest.raises(CorruptVideo, match="no samples"):
        await index_of(indexer, whole[: whole.index(b"moof") - 4])


# --- workers that misbehave -------------------------------------------------------------------------------------------


@pytest.fixture
async def scripted(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    fds, children = len(os.listdir("/proc/self/fd")), len(psutil.Process().children())
    async with Indexer(size=1, module="scripted_indexer", longest_call=2.0) as made:
        yield made
    assert len(os.listdir("/proc/self/fd")) == fds
    assert len(psutil.Process().children()) == children


def script(**what):
    return SharedBytes.of([json.dumps(what).encode().ljust(64)])


async def serves_again(indexer):
    with script() as source:
        async with await indexer.open(source, LIMITS, soon()) as video:
            memory, packets = await video.packets([0, 2])
            memory.close()
            assert [(p.offset, p.size) for p in packets] == [(0, 1), (1, 3)]
    while indexer.idle < indexer.size:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert indexer.alive == indexer.size


@pytest.mark.parametrize("do", [{"do": "die"}, {"do": "bomb"}, {"do": "hang", "seconds": 60}])
@pytest.mark.parametrize("when", ["open", "packets"])
async def test_a_lost_worker_fails_one_call(scripted, do, when):
    with script(**do, when=when) as source, pytest.raises(WorkerLost):
        async with await scripted.open(source, LIMITS, soon()) as video:
            await video.packets([0])
    assert scripted.lost == 1
    await serves_again(scripted)


@pytest.mark.parametrize(
    "lie",
    [
        {"values": {"samples": 4}},  # one of the arrays' zeros is a size
        {"values": {"samples": 1 << 40}},
        {"values": {"samples": True}},
        {"values": {"width": 1 << 30}},
        {"values": {"width": 20_000, "height": 2}},
        {"values": {"width": -1}},
        {"values": {"width": "64"}},
        {"values": {"duration": -1.0}},
        {"values": {"duration": float("nan")}},
        {"values": {"duration": float("inf")}},
        {"values": {"degrees": 45}},
        {"values": {"sample_aspect": [1, 0]}},
        {"values": {"codec": "../../x"}},
        {"values": {"extradata": "no base64!"}},
        {"values": {"colour": [2, 2, 2, "wide", None]}},
        {"values": {"notes": ["x" * 5000]}},
        {"values": {"notes": ["x"] * 100}},
        {"values": {"surplus": 1}},
        {"without": ["codec"]},
        {"arrays": {"size": [1, -2, 3]}},
        {"arrays": {"size": [1, 1 << 62, 3]}},
        {"arrays": {"position": [-2, 0, 0]}},
        {"arrays": {"position": [0, 1 << 60, 0]}},
        {"arrays": {"time": [0, float("nan"), 0]}},
        {"arrays": {"time": [0, float("inf"), 0]}},
        {"arrays": {"duration": [0, -1, 0]}},
        {"arrays": {"flags": [1, 255, 0]}},
        {"when": "packets", "reply": {"written": 7}},
        {"when": "packets", "reply": {}},
    ],
    ids=lambda lie: str(lie)[:60],
)
async def test_a_lying_worker_is_replaced(scripted, lie):
    with script(**lie) as source, pytest.raises(WorkerLost):
        async with await scripted.open(source, LIMITS, soon()) as video:
            await video.packets([0])
    await serves_again(scripted)


async def test_a_worker_may_refuse_only_for_known_reasons(scripted):
    for kind, message, error in [
        ("NOT_A_VIDEO", "no", NotAVideo),
        ("TOO_LARGE", "samples 5 4", TooLarge),
        ("TOO_LARGE", "rubbish", InternalError),
        ("OVERLOADED", "go away", InternalError),
    ]:
        with script(do="refuse", kind=kind, message=message) as source, pytest.raises(error):
            await scripted.open(source, LIMITS, soon())
    with script(do="fail") as source, pytest.raises(InternalError, match="a bug"):
        await scripted.open(source, LIMITS, soon())
    assert scripted.lost == 0


async def test_a_short_deadline_does_not_cost_a_worker(scripted):
    with script(do="hang", seconds=0.5) as source, pytest.raises(DeadlineExceeded):
        await scripted.open(source, LIMITS, soon(0.1))
    await serves_again(scripted)
    assert scripted.lost == 0


async def test_waiting_for_a_worker_ends_with_the_deadline(scripted):
    with script() as source:
        async with await scripted.open(source, LIMITS, soon()):
            with pytest.raises(DeadlineExceeded, match="waiting"):
                await scripted.open(source, LIMITS, soon(0.1))
            with pytest.raises(DeadlineExceeded, match="before"):
                await scripted.open(source, LIMITS, soon(-1))
    await serves_again(scripted)


@pytest.mark.parametrize("when", ["open", "packets"])
async def test_cancelled_calls_give_the_worker_back_in_sync(scripted, when):
    async def call():
        with script(do="hang", seconds=0.3, when=when) as source:
            async with await scripted.open(source, LIMITS, soon()) as video:
                await video.packets([0])

    for _ in range(3):
        task = asyncio.create_task(call())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await serves_again(scripted)
    assert scripted.lost == 0


async def test_many_cancellations_at_random_moments_leak_nothing(scripted):
    rng = np.random.default_rng(7)
    fds = len(os.listdir("/proc/self/fd"))

    async def call():
        with script() as source:
            async with await scripted.open(source, LIMITS, soon()) as video:
                memory, _ = await video.packets([0, 1, 2])
                memory.close()

    for _ in range(100):
        task = asyncio.create_task(call())
        await asyncio.sleep(float(rng.uniform(0, 0.004)))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await serves_again(scripted)
    assert scripted.lost == 0
    assert len(os.listdir("/proc/self/fd")) == fds


async def test_closing_ends_waiting_and_working_calls(scripted):
    with script(do="hang", seconds=60) as source:
        working = asyncio.create_task(scripted.open(source, LIMITS, soon()))
        await asyncio.sleep(0.1)
        await scripted.close()
        with pytest.raises(WorkerLost):
            await working
        with pytest.raises(Draining):
            await scripted.open(source, LIMITS, soon())
