"""Whole files: what is built is what is read, and what is wrong is told by name."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyglance.errors import CorruptVideo, EmptySource, Encrypted, KeyglanceError, NotAVideo, NoVideoStream, TooLarge
from keyglance.mp4 import BytesSource, CountingSource, Declined, FileSource, Mp4Limits, as_the_container_says, read_index
from keyglance.video import Colour, ColourRange, Orientation, SampleFlag, StreamConfig, VideoIndex
from tests.mp4.build import (
    AVCC,
    FTYP,
    IDENTITY,
    Sample,
    Track,
    box,
    edit_list,
    full,
    group_of_pictures,
    movie,
    mvhd,
    protection,
    table,
    tenc,
    u16,
    u32,
    u64,
    visual_entry,
    wide_box,
)  # fmt: skip

CLIP = group_of_pictures(60, every=20, reorder=512)
SOUND = Track([Sample(20, 1024) for _ in range(30)], 9, b"soun", 48000, [box(b"mp4a", bytes(28))])


def read(data: bytes, **limits: Any) -> VideoIndex:
    return read_index(BytesSource(data), Mp4Limits(**limits), describe=as_the_container_says)


def keys(index: VideoIndex) -> list[int]:
    return np.flatnonzero(index.samples.having(SampleFlag.KEY)).tolist()


def outside(index: VideoIndex) -> list[int]:
    return np.flatnonzero(index.samples.having(SampleFlag.OUTSIDE_EDIT)).tolist()


def expect(index: VideoIndex, data: bytes, track: Track) -> None:
    """The index says of every sample what the track was built from."""
    samples = [sample for sample in track.samples if sample.size]
    assert len(index.samples) == len(samples)
    assert index.samples.size.tolist() == [sample.size for sample in samples]
    for position, size in zip(index.samples.position.tolist(), index.samples.size.tolist(), strict=True):
        assert data[position : position + size] == bytes((track.id,)) * size
    starts = np.diff(index.samples.position)
    assert (starts == index.samples.size[:-1]).all()
    clock = [0, *accumulate(sample.duration for sample in track.samples)]
    shown = [at + sample.offset for at, sample in zip(clock, track.samples, strict=False) if sample.size]
    zero = min(shown)
    assert index.samples.time == pytest.approx([(at - zero) / track.timescale for at in shown], abs=1e-9)
    assert keys(index) == [number for number, sample in enumerate(samples) if sample.key]


# More than a thousand pictures a second are not believed.
samples = st.builds(
    Sample, size=st.integers(0, 40), duration=st.integers(20, 900), key=st.booleans(), offset=st.integers(-2000, 2000)
)


@given(
    st.lists(samples, min_size=1, max_size=40),
    st.integers(1, 9),
    st.sampled_from(["moov-first", "moov-last"]),
    st.booleans(),
    st.sampled_from([0, 8, 16]),
    st.sampled_from([0, 1]),
)
def test_any_track_reads_as_it_was_built(
    of: list[Sample], chunk: int, order: Any, wide: bool, compact: int, version: int
) -> None:
    # A table without an entry means something else; see below.
    of[0] = replace(of[0], key=True, size=of[0].size or 1)
    track = Track(of, chunk=chunk, wide=wide, compact=compact, version=version)
    data = movie([SOUND, track], order=order)
    index = read(data)
    expect(index, data, track)
    assert index.track == 1
    assert index.size_bytes == len(data)
    assert not index.truncated


@pytest.mark.parametrize("order", ["moov-first", "moov-last"])
def test_a_plain_clip(order: Any, tmp_path: Path) -> None:
    track = Track(CLIP, entries=[visual_entry(b"avc1", 640, 360)], shown=(640, 360))
    data = movie([track, SOUND], order=order)
    index = read(data)
    expect(index, data, track)
    assert index.container == "mov,mp4,m4a,3gp,3g2,mj2"
    assert index.duration == pytest.approx(60 * 512 / 12800)
    assert index.notes == ()
    assert index.other_video_tracks == 0
    assert index.orientation == Orientation()
    assert index.config == StreamConfig("h264", 640, 360, 8, "420", "", AVCC, int.from_bytes(b"avc1", "little"), 24)
    path = tmp_path / "clip.mp4"
    path.write_bytes(data)
    with FileSource(path) as source:
        assert repr(read_index(source, describe=as_the_container_says)) == repr(index)


def test_only_the_bytes_needed_are_touched() -> None:
    picture = box(b"udta", box(b"free", bytes(100_000)))
    track = Track(CLIP, more=full(b"saiz", 0, 0, bytes(50_000)))
    source = CountingSource(BytesSource(movie([SOUND, track], extra=picture)))
    index = read_index(source, describe=as_the_container_says)
    touched = source.touched()
    # Of the tables only those of the video: 60 sizes, offsets and times, and a few hundred bytes of everything else.
    assert sum(end - start for start, end in touched) < 2_200
    first = int(index.samples.position.min())
    assert max(end for _, end in touched) < first


def test_chunks_may_lie_anywhere() -> None:
    data = movie([Track(CLIP[:4], chunk=2)], order="moov-last")
    start = len(FTYP) + 8
    stco = table(b"stco", [(start + 300,), (start,)])
    data = movie([Track(CLIP[:4], chunk=2, tables={b"stco": stco})], order="moov-last")
    assert read(data).samples.position.tolist() == [start + 300, start + 800, start, start + 100]


def test_wide_boxes_and_boxes_to_the_end() -> None:
    plain = movie([Track(CLIP)], order="moov-last")
    moov = plain[plain.index(b"moov") + 4 :]
    payload = plain[len(FTYP) + 8 : plain.index(b"moov") - 4]
    wide = FTYP + wide_box(b"mdat", payload[:-8]) + wide_box(b"moov", moov)
    assert len(read(wide).samples) == len(CLIP)
    to_the_end = FTYP + box(b"mdat", payload) + u32(0) + b"moov" + moov
    assert repr(read(to_the_end)) == repr(read(plain))


# Key flags


def test_without_a_table_all_are_keyframes() -> None:
    index = read(movie([Track(CLIP, tables={b"stss": None})]))
    assert keys(index) == list(range(60))
    depends = full(b"sdtp", 0, 0, bytes((0x20, *(0x10,) * 59)))
    (note,) = read(movie([Track(CLIP, tables={b"stss": None}, more=depends)])).notes
    assert note == "all samples are flagged as keyframes, but 59 are said to depend on others"


def test_an_empty_table_leaves_the_first() -> None:
    assert keys(read(movie([Track(CLIP, tables={b"stss": table(b"stss", [])})]))) == [0]


def test_a_table_of_nothing_leaves_none() -> None:
    index = read(movie([Track(CLIP, tables={b"stss": table(b"stss", [(900,)])})]))
    assert keys(index) == []
    assert index.notes == ("no sample is flagged as a keyframe",)


def test_partial_sync_samples_and_groups_are_keyframes() -> None:
    rap = full(b"sbgp", 0, 0, b"rap ", u32(2, 7, 0, 1, 1))
    index = read(movie([Track(CLIP, more=table(b"stps", [(5,)]) + rap)]))
    assert keys(index) == [0, 4, 7, 20, 40]


def test_a_gradual_refresh_is_told() -> None:
    roll = full(b"sbgp", 0, 0, b"roll", u32(2, 1, 1, 1, 2))
    distances = full(b"sgpd", 1, 0, b"roll", u32(2, 2), u16(5, 0xFFFF))
    assert read(movie([Track(CLIP, more=roll + distances)])).notes == ("2 samples begin a gradual refresh",)
    assert read(movie([Track(CLIP, more=roll)])).notes == ()


# Edit lists


def test_an_edit_that_takes_back_the_reordering_changes_nothing() -> None:
    plain = read(movie([Track(CLIP)]))
    for version in (0, 1):
        edited = read(movie([Track(CLIP, edits=edit_list([(10_000, 512, 1 << 16)], version))]))
        assert edited.samples.time.tolist() == plain.samples.time.tolist()
        assert outside(edited) == []


def test_what_an_edit_leaves_out_is_marked_and_keeps_its_place() -> None:
    track = Track(group_of_pictures(50, duration=256), edits=edit_list([(500, 2560, 1 << 16)]))  # pictures 10 to 34
    index = read(movie([track]))
    assert outside(index) == [*range(10), *range(35, 50)]
    assert index.samples.time.tolist() == pytest.approx([(n - 10) / 50 for n in range(50)])
    assert index.duration == pytest.approx(0.5)
    assert index.notes == ()


def test_an_empty_edit_and_one_without_end() -> None:
    index = read(movie([Track(CLIP, edits=edit_list([(5000, -1, 1 << 16), (0, 0, 1 << 16)]))]))
    assert outside(index) == []
    assert index.samples.time.min() == 0


def test_two_edits_in_another_order_and_the_first_one_counts() -> None:
    one = 1 << 16
    edits = [(200, 2560, one), (400, 0, one), (5000, -1, one), (100, 2560, one)]
    index = read(movie([Track(group_of_pictures(20, duration=256), edits=edit_list(edits))]))
    # Pictures 10 to 19 come first, then 0 to 19 of which 10 to 19 were shown before.
    assert outside(index) == []
    assert index.samples.time.tolist() == pytest.approx([*(0.2 + n / 50 for n in range(10)), *(n / 50 for n in range(10))])


def test_rates() -> None:
    pictures = group_of_pictures(20, duration=256)
    still = [(1000, 2600, 0), (200, 0, 1 << 16)]
    index = read(movie([Track(pictures, edits=edit_list(still))]))
    assert outside(index) == list(range(11, 20))
    assert index.samples.time[10] == 0  # picture 10 stands still for a second
    assert index.samples.time[:10].tolist() == pytest.approx([1 + n / 50 for n in range(10)])
    before = read(movie([Track(pictures, edits=edit_list([(1000, -5000, 0), (100, 0, 1 << 16)]))]))
    assert before.samples.time[0] == 0
    double = [(100, 0, 2 << 16), (100, 2560, 1 << 16)]
    index = read(movie([Track(pictures, edits=edit_list(double))]))
    assert index.samples.time[:12].tolist() == pytest.approx([*(n / 100 for n in range(10)), 0.1, 0.12])


def test_an_edit_list_that_leaves_out_all() -> None:
    with pytest.raises(CorruptVideo, match="leaves out all 60 samples"):
        read(movie([Track(CLIP, edits=edit_list([(1000, 1 << 30, 1 << 16)]))]))


def test_only_empty_edits_are_none() -> None:
    assert outside(read(movie([Track(CLIP, edits=edit_list([(1000, -1, 1 << 16)]))]))) == []
    assert outside(read(movie([Track(CLIP, edits=box(b"edts"))]))) == []


def test_too_many_edits() -> None:
    with pytest.raises(TooLarge, match="edits: 3, at most 2"):
        read(movie([Track(CLIP, edits=edit_list([(1, 0, 1 << 16)] * 3))]), edits=2)


# Times that cannot be


def test_absurd_times_are_repaired_and_told() -> None:
    absurd = [replace(sample, offset=1 << 27 if n == 7 else 0) for n, sample in enumerate(group_of_pictures(60))]
    index = read(movie([Track(absurd)]))
    assert "1 of 60 composition offsets absurd: replaced" in index.notes
    assert index.duration == pytest.approx(60 / 25)
    none = read(movie([Track([Sample(duration=0) for _ in range(60)])]))
    assert none.duration == pytest.approx(60 / 25)
    assert "60 samples within 0 s: counted at 25 pictures a second" in none.notes
    index = read(movie([Track(CLIP, tables={b"ctts": table(b"ctts", [(1, 1 << 30)] * 60)})]))
    assert "composition offsets absurd: left out" in index.notes


def test_times_that_end_early_go_on() -> None:
    index = read(movie([Track(group_of_pictures(10), tables={b"stts": table(b"stts", [(4, 512)])})]))
    assert index.samples.time.tolist() == pytest.approx([n / 25 for n in range(10)])
    assert index.notes == ("the time table covers 4 of 10 samples",)


def test_no_time_table_and_no_time_scale() -> None:
    index = read(movie([Track(group_of_pictures(10), tables={b"stts": None})]))
    assert index.samples.time.tolist() == pytest.approx([n / 25 for n in range(10)])
    index = read(movie([Track(group_of_pictures(10), timescale=0)], head=mvhd(0)), seconds=1e4)  # ticks are seconds then
    assert index.samples.time.tolist() == pytest.approx([512 * n for n in range(10)])


# Damage


def test_a_file_cut_off_keeps_what_is_there() -> None:
    data = movie([Track(CLIP)])
    index = read(data[:-250])
    assert len(index.samples) == 58
    assert index.samples.size[-1] == 50
    assert np.flatnonzero(index.samples.having(SampleFlag.CORRUPT)).tolist() == [57]
    assert index.truncated


def test_a_file_without_its_media() -> None:
    data = movie([Track(CLIP)])
    with pytest.raises(CorruptVideo, match="not one of the video track's 60 samples"):
        read(data[: data.index(b"mdat") + 4])


def test_a_file_cut_off_in_its_movie_box() -> None:
    data = movie([Track(CLIP), SOUND], order="moov-last")
    index = read(data[:-200])
    assert len(index.samples) == 60
    assert index.notes == ("the file ends 200 bytes before the end of its movie box",)
    with pytest.raises(NotAVideo, match="before the end of its movie box"):
        read(data[: data.index(b"trak") + 20])


def test_tables_that_are_missing_or_short() -> None:
    for kind in (b"stsz", b"stco", b"stsc"):
        with pytest.raises(CorruptVideo, match="no samples"):
            read(movie([Track(CLIP, tables={kind: None})]))
    with pytest.raises(CorruptVideo, match="no samples"):
        read(movie([Track(CLIP, tables={b"stco": table(b"stco", [])})]))
    with pytest.raises(CorruptVideo, match="no samples"):
        read(movie([Track(CLIP, tables={b"stsz": full(b"stsz", 0, 0, u32(0, 60))})]))
    short = full(b"stsz", 0, 0, u32(0, 60, *([100] * 20)))
    index = read(movie([Track(CLIP, tables={b"stsz": short})]))
    assert len(index.samples) == 20
    assert index.truncated


def test_a_chunk_table_that_contradicts_itself_is_left_to_others() -> None:
    with pytest.raises(Declined, match="sample-to-chunk"):
        read(movie([Track(CLIP, tables={b"stsc": table(b"stsc", [(2, 1, 1)])})]))


def test_samples_without_payload_are_no_samples() -> None:
    pictures = [replace(sample, size=0 if n % 2 else 10) for n, sample in enumerate(group_of_pictures(10))]
    index = read(movie([Track(pictures)]))
    assert index.samples.time.tolist() == pytest.approx([n / 25 for n in range(0, 10, 2)])
    assert not index.truncated


def test_limits() -> None:
    data = movie([Track(CLIP, entries=[visual_entry(b"avc1", 640, 360)])])
    for limits, what in (
        ({"pixels": 640 * 360 - 1}, "pixels: 230,400"),
        ({"side": 639}, "pixels on a side: 640"),
        ({"seconds": 1.0}, "seconds: 2.4"),
        ({"samples": 59}, "samples: 60"),
        ({"tracks": 0}, "tracks: 1"),
        ({"boxes": 20}, "boxes: 2"),
        ({"header_bytes": 300}, "header bytes"),
    ):
        with pytest.raises(TooLarge, match=what):
            read(data, **limits)
    read(data, pixels=640 * 360, side=640, samples=60, tracks=1)


def test_a_billion_samples_of_no_bytes_cost_nothing() -> None:
    sizes = full(b"stsz", 0, 0, u32(1, 0xFFFFFFFF))
    chunks = table(b"stsc", [(1, 0xFFFFFFFF, 1)])
    with pytest.raises(TooLarge, match="samples"):
        read(movie([Track(CLIP, tables={b"stsz": sizes, b"stsc": chunks})]))


# What it is


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", EmptySource, "empty"),
        (b"GIF89a" + bytes(20), Declined, "no MP4 file"),
        (b"short", Declined, "no MP4 file"),
        (u32(3) + b"moov" + bytes(9), Declined, "no MP4 file"),
        (box(b"ftyp", b"abcd", u32(0), b"efgh"), Declined, "brand 'abcd'"),
        (box(b"ftyp", b"heic", u32(0), b"mif1"), NotAVideo, "HEIF"),
        (box(b"ftyp", b"mif1", u32(0), b"avif"), NotAVideo, "AVIF"),
        (box(b"ftyp", b"crx ", u32(0), b"isom"), NotAVideo, "CR3"),
        (FTYP, NotAVideo, "without a movie box"),
        (FTYP + u32(5000) + b"mdat" + bytes(10), NotAVideo, "ends 4,982 bytes before the end of its box 'mdat'"),
        (FTYP + box(b"moof"), NotAVideo, "1 fragments without the movie box"),
        (FTYP + box(b"moov", box(b"cmov")), Declined, "compressed"),
        (FTYP + box(b"moov", box(b"rmra")), NotAVideo, "reference movie"),
        (FTYP + box(b"moov"), NoVideoStream, "tracks: none"),
        (FTYP + box(b"moov", box(b"trak")), Declined, "handler ''"),
        (movie([SOUND]), NoVideoStream, "tracks: soun"),
        (movie([Track([])]), CorruptVideo, "no samples"),
        (movie([Track(CLIP, entries=[])]), Declined, "no sample description"),
        (movie([Track(CLIP, entries=[visual_entry(b"zzzz")])]), Declined, "codec 'zzzz'"),
        (movie([Track(CLIP, entries=[box(b"avc1", bytes(20))])]), Declined, "codec 'avc1'"),
        (movie([Track([Sample(entry=2)])]), Declined, "sample description 2 of 1"),
    ],
)  # fmt: skip
def test_what_is_refused(data: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read(data)


def test_brands_of_old_and_new() -> None:
    for brand in (b"qt  ", b"3gp5", b"mp42", b"M4V ", b"dash", b"iso6", b"cmfc"):
        assert len(read(movie([Track(CLIP)], ftyp=box(b"ftyp", brand, u32(0)))).samples) == 60
    assert len(read(movie([Track(CLIP)], ftyp=box(b"wide"))).samples) == 60
    assert len(read(movie([Track(CLIP)], ftyp=box(b"ftyp", b"zzzz", u32(0), b"isom"))).samples) == 60


def test_pictures_in_another_file() -> None:
    for reference in (full(b"url ", 0, 0, b"https://example.org/a.mp4\0"), full(b"alis", 0, 0, bytes(10), b"disk")):
        with pytest.raises(NotAVideo, match="another file"):
            read(movie([Track(CLIP, data_references=[reference])]))
    for reference in (full(b"url ", 0, 0, b"\0"), full(b"alis", 0, 1)):
        assert len(read(movie([Track(CLIP, data_references=[reference])])).samples) == 60


# Which track


def test_the_main_track() -> None:
    small = Track(CLIP[:5], 3, enabled=False)
    index = read(movie([SOUND, small, Track(CLIP, 2)]))
    assert (index.track, index.other_video_tracks, len(index.samples)) == (2, 1, 60)
    index = read(movie([small, Track(CLIP, 2, enabled=False)]))
    assert (index.track, index.other_video_tracks) == (0, 1)
    index = read(movie([Track([], 3), Track(CLIP, 2)]))
    assert (index.track, index.other_video_tracks) == (1, 0)
    index = read(movie([Track(CLIP[:1], 3), Track(CLIP, 2)]))
    assert (index.track, index.other_video_tracks) == (1, 1)
    index = read(movie([Track(CLIP, 3, entries=[visual_entry(b"avc1", 0, 0)]), Track(CLIP, 2)]))
    assert (index.track, index.other_video_tracks) == (1, 1)


def test_another_track_where_the_main_one_is_damaged() -> None:
    gone = Track(CLIP, 3, tables={b"stco": table(b"stco", [(1 << 30,)] * 6)})
    index = read(movie([gone, Track(CLIP, 2)]))
    assert (index.track, index.other_video_tracks, index.notes) == (1, 1, ())
    with pytest.raises(CorruptVideo, match="not one of the video track's 60 samples"):
        read(movie([gone, replace(gone, id=4, enabled=False)]))


def test_chapter_images_and_cover_art_are_no_video() -> None:
    images = Track([Sample()] * 3, 7, entries=[visual_entry(b"jpeg")])
    chapters = box(b"tref", box(b"chap", u32(7)))
    with pytest.raises(NoVideoStream, match="chapter images"):
        read(movie([replace(SOUND, references=chapters), images]))
    index = read(movie([Track(CLIP, references=chapters), images]))
    assert (index.track, index.other_video_tracks) == (0, 0)
    cover = Track([Sample()], 7, entries=[visual_entry(b"jpeg")])
    with pytest.raises(NoVideoStream, match="cover art"):
        read(movie([SOUND, cover], ftyp=box(b"ftyp", b"M4A ", u32(0))))
    assert len(read(movie([SOUND, cover])).samples) == 1


# How it is coded


def test_orientation() -> None:
    one = 1 << 16
    turned = (0, one, 0, -one, 0, 0, 0, 0, 1 << 30)
    for matrix, expected in (
        (IDENTITY, Orientation()),
        (turned, Orientation(90)),
        ((-one, 0, 0, 0, -one, 0, 0, 0, 1 << 30), Orientation(180)),
        ((0, -one, 0, one, 0, 0, 0, 0, 1 << 30), Orientation(270)),
        ((-one, 0, 0, 0, one, 0, 0, 0, 1 << 30), Orientation(0, True)),
    ):
        assert read(movie([Track(CLIP, matrix=matrix)])).orientation == expected
        assert read(movie([Track(CLIP)], head=mvhd(matrix=matrix))).orientation == expected
    assert read(movie([Track(CLIP, matrix=turned)], head=mvhd(matrix=turned, version=1))).orientation == Orientation(180)
    skewed = read(movie([Track(CLIP, matrix=(one, one // 4, 0, 0, one, 0, 0, 0, 1 << 30))]))
    assert "display matrix turns by 14.0 degrees: taken as 0" in skewed.notes
    flat = read(movie([Track(CLIP, matrix=(one, one, 0, one, one, 0, 0, 0, 1 << 30))]))
    assert (flat.orientation, flat.notes) == (Orientation(), ("display matrix without inverse: not turned",))
    assert read(movie([Track(CLIP, matrix=(0,) * 9)])).notes == ()


def test_sample_aspect() -> None:
    pasp = box(b"pasp", u32(16, 11))
    assert read(movie([Track(CLIP, entries=[visual_entry(b"avc1", 320, 240, pasp)])])).config.sample_aspect == Fraction(16, 11)
    assert read(movie([Track(CLIP, shown=(640, 240))])).config.sample_aspect == 2
    assert read(movie([Track(CLIP, shown=(0, 0))])).config.sample_aspect == 1
    wide = (2 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    assert read(movie([Track(CLIP, matrix=wide)])).config.sample_aspect == 2
    absurd = read(movie([Track(CLIP, shown=(32000, 240))]))
    assert (absurd.config.sample_aspect, absurd.notes) == (1, ("sample aspect 100 absurd: taken for square",))


def test_colour_and_clean_aperture() -> None:
    boxes = [
        box(b"colr", b"nclx", u16(9, 16, 9), b"\x80"),
        box(b"clap", u32(300, 1, 200, 1, 0, 1, 0, 1)),
    ]
    index = read(movie([Track(CLIP, entries=[visual_entry(b"avc1", 320, 240, *boxes)])]))
    assert index.config.colour == Colour(9, 16, 9, ColourRange.FULL)
    assert index.notes == ("clean aperture 300x200 of 320x240 is not applied",)
    whole = box(b"clap", u32(320, 1, 240, 1, 0, 1, 0, 1))
    assert read(movie([Track(CLIP, entries=[visual_entry(b"avc1", 320, 240, whole)])])).notes == ()
    for data, expected in (
        (b"nclc" + u16(1, 99, 0), Colour(1, 2, 0)),
        (b"nclx" + u16(0, 1, 99) + b"\0", Colour(2, 1, 2, ColourRange.LIMITED)),
        (b"prof" + bytes(20), Colour()),
        (b"nclx", Colour()),
    ):
        index = read(movie([Track(CLIP, entries=[visual_entry(b"avc1", 320, 240, box(b"colr", data))])]))
        assert index.config.colour == expected


def test_several_sample_descriptions() -> None:
    twice = [replace(sample, entry=1 + n // 30) for n, sample in enumerate(CLIP)]
    same = read(movie([Track(twice, chunk=30, entries=[visual_entry(), visual_entry(b"avc1", 64, 64)])]))
    assert (same.config.width, same.notes) == (320, ())
    first_used = read(movie([Track([replace(s, entry=2) for s in CLIP], entries=[visual_entry(b"vp09"), visual_entry()])]))
    assert first_used.config.codec == "h264"
    backwards = [replace(sample, entry=2 - n // 30) for n, sample in enumerate(CLIP)]
    assert read(movie([Track(backwards, chunk=30, entries=[visual_entry(), visual_entry(b"avc1", 64, 64)])])).config.width == 64
    for entries, words in (
        ([visual_entry(), visual_entry(config=box(b"avcC", AVCC + b"x"))], "h264 configuration changes"),
        ([visual_entry(), visual_entry(b"hvc1")], "codec changes"),
        ([visual_entry()], "sample description 2 of 1"),
    ):
        with pytest.raises(Declined, match=words):
            read(movie([Track(twice, chunk=30, entries=entries)]))
    glbl = box(b"glbl", b"header")
    changing = [visual_entry(b"mp4v"), visual_entry(b"mp4v", 320, 240, glbl)]
    assert read(movie([Track(twice, chunk=30, entries=changing)])).notes == (
        "the mpeg4 configuration changes, which is not followed",
    )
    av1 = [visual_entry(b"av01", config=box(b"av1C", bytes((0x81, n, 12, 0)))) for n in (1, 2)]
    assert read(movie([Track(twice, chunk=30, entries=av1)])).notes == ()


# Encryption


def test_encrypted_tracks() -> None:
    encrypted = visual_entry(b"encv", 320, 240, protection(b"avc1", tenc()))
    unnamed = visual_entry(b"encv", 320, 240)
    piff_key = bytes.fromhex("8974dbce7be74c5184f97148f9882554")
    piff = visual_entry(b"encv", 320, 240, protection(b"avc1", box(b"uuid", piff_key, u32(0), b"\0\0\1\x08", bytes(16))))
    apple = visual_entry(b"drmi", 320, 240, box(b"avcC", AVCC), protection(b"avc1"))
    for entry in (encrypted, piff, apple):
        with pytest.raises(Encrypted, match=r"60 of 60 samples are encrypted \(cenc\)$"):
            read(movie([Track(CLIP, entries=[entry])]))
    with pytest.raises(Declined, match="codec 'encv'"):
        read(movie([Track(CLIP, entries=[unnamed])]))
    clear = read(movie([Track(CLIP, entries=[visual_entry(b"encv", 320, 240, protection(b"avc1", tenc(False)))])]))
    assert clear.config.codec_tag == int.from_bytes(b"avc1", "little")
    clear_piff = protection(b"avc1", box(b"uuid", piff_key, u32(0), bytes(4), bytes(16)), box(b"free", bytes(30)))
    assert len(read(movie([Track(CLIP, entries=[visual_entry(b"encv", 320, 240, clear_piff)])])).samples) == 60


def test_a_clear_beginning() -> None:
    pictures = [replace(sample, entry=1 if n < 40 else 2) for n, sample in enumerate(CLIP)]
    entries = [visual_entry(), visual_entry(b"encv", 320, 240, protection(b"avc1", tenc()))]
    index = read(movie([Track(pictures, chunk=20, entries=entries)]))
    assert np.flatnonzero(index.samples.having(SampleFlag.ENCRYPTED)).tolist() == list(range(40, 60))
    one_key = [replace(sample, key=n == 45) for n, sample in enumerate(pictures)]
    with pytest.raises(Encrypted, match="20 of 60"):
        read(movie([Track(one_key, chunk=20, entries=entries)]))


# The seam for bitstream headers


#: What x264 writes for 320x240 pixels.
X264 = bytes.fromhex("0164000dffe100186764000dacd94141fa1000000300100000030320f142996001000668ebe3cb22c0fdf8f800")


def test_the_bitstream_has_the_last_word() -> None:
    entry = visual_entry(b"avc1", 640, 360, config=box(b"avcC", X264))
    source = CountingSource(BytesSource(movie([Track(CLIP, entries=[entry])])))
    index = read_index(source)
    assert (index.config.width, index.config.height, index.config.profile) == (320, 240, "High")
    assert index.notes == ("size: the container says 640x360, the bitstream 320x240",)
    assert max(end for _, end in source.touched()) < int(index.samples.position.min())  # the record told it all


def test_where_the_record_tells_nothing_the_first_keyframe_is_looked_at() -> None:
    pictures = [replace(sample, size=200_000, key=n == 3) for n, sample in enumerate(CLIP[:5])]
    source = CountingSource(BytesSource(movie([Track(pictures, entries=[visual_entry(b"avc3", config=b"")])])))
    index = read_index(source)
    assert source.reads[-1] == (int(index.samples.position[3]), 1 << 16)
    assert (index.config.width, index.config.height) == (320, 240)
    source = CountingSource(BytesSource(movie([Track(pictures, entries=[visual_entry(b"apcn")])])))
    index = read_index(source)
    assert source.reads[-1][0] < int(index.samples.position.min())


def test_any_other_description_of_the_bitstream() -> None:
    data = movie([Track(CLIP, entries=[visual_entry(b"avc1", 320, 240)])])
    seen: list[Any] = []

    def describe(config: StreamConfig, beginning: Any, keyframe: int) -> tuple[StreamConfig, list[str]]:
        seen.extend((keyframe, len(beginning(0)), len(beginning(1))))
        return replace(config, width=4000), ["it is wide"]

    index = read_index(BytesSource(data), describe=describe)
    assert (index.config.width, index.notes) == (4000, ("it is wide",))
    assert seen == [0, 500, 100]
    with pytest.raises(TooLarge, match="pixels"):
        read_index(BytesSource(data), Mp4Limits(pixels=320 * 240), describe=describe)


def test_every_refusal_is_one_line() -> None:
    for data in (FTYP, movie([SOUND]), movie([Track(CLIP, data_references=[full(b"url ", 0, 0, b"x")])])):
        with pytest.raises(KeyglanceError) as caught:
            read(data)
        assert "\n" not in caught.value.message
    assert u64(1) == bytes(7) + b"\1"
