from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyglance.errors import CorruptVideo, Encrypted, NotAVideo
from keyglance.mp4 import BytesSource, CountingSource, Mp4Limits, as_the_container_says, read_index
from keyglance.video import SampleFlag, VideoIndex
from tests.mp4.build import (
    BASE_IS_MOOF,
    BASE_OFFSET,
    DURATION,
    ENTRY,
    FLAGS,
    FTYP,
    NOT_SYNC,
    RUN_COMPOSITION,
    RUN_DURATION,
    RUN_FLAGS,
    RUN_SIZE,
    SIZE,
    SYNC,
    Sample,
    Track,
    box,
    edit_list,
    fragment,
    fragmented,
    full,
    group_of_pictures,
    moof,
    movie,
    movie_header,
    mvex,
    protection,
    tenc,
    tfdt,
    tfhd,
    trex,
    trun,
    u32,
    u64,
    visual_entry,
)  # fmt: skip

CLIP = group_of_pictures(60, every=20, reorder=512)
ALL = RUN_DURATION | RUN_SIZE | RUN_FLAGS | RUN_COMPOSITION


def read(data: bytes) -> VideoIndex:
    return read_index(BytesSource(data), describe=as_the_container_says)


def keys(index: VideoIndex) -> list[int]:
    return np.flatnonzero(index.samples.having(SampleFlag.KEY)).tolist()


def parts(samples: list[Sample], length: int) -> list[list[Sample]]:
    return [samples[at : at + length] for at in range(0, len(samples), length)]


def clip(samples: list[Sample], length: int, times: bool = True) -> bytes:
    clock = [0, *accumulate(sample.duration for sample in samples)]
    pieces = parts(samples, length)
    return fragmented(
        Track(), [fragment(piece, clock[n * length] if times else None, flags=ALL) for n, piece in enumerate(pieces)]
    )


samples = st.builds(
    Sample, size=st.integers(1, 40), duration=st.integers(1, 900), key=st.booleans(), offset=st.integers(-2000, 2000)
)


@given(st.lists(samples, min_size=1, max_size=30), st.integers(1, 9), st.booleans())
def test_fragments_say_the_same_as_a_sample_table(of: list[Sample], length: int, times: bool) -> None:
    of[0] = replace(of[0], key=True)
    plain = read(movie([Track(of)]))
    data = clip(of, length, times)
    index = read(data)
    assert index.samples.time == pytest.approx(plain.samples.time)
    assert index.samples.duration.tolist() == plain.samples.duration.tolist()
    assert index.samples.flags.tolist() == plain.samples.flags.tolist()
    assert index.samples.size.tolist() == plain.samples.size.tolist()
    expected, at = [], 0
    for piece in parts(of, length):
        at = data.index(b"mdat", at) + 4
        for sample in piece:
            expected.append(at)
            at += sample.size
    assert index.samples.position.tolist() == expected
    assert index.duration == pytest.approx(plain.duration)


def test_what_a_run_leaves_out_comes_from_the_fragment_and_then_from_the_movie() -> None:
    pictures = [Sample(10, 512) for _ in range(6)]
    init = movie_header(FTYP, Track(), mvex(trex(1, 1, 512, 10, NOT_SYNC)))

    def made(at: int, header: bytes, *, first: int | None = None, flags: int = 0) -> bytes:
        def whole(offset: int) -> bytes:
            return moof(box(b"traf", header, tfdt(at * 512), trun(pictures, offset=offset, flags=flags, first=first)))

        return whole(len(whole(0)) + 8) + box(b"mdat", bytes(60))

    all_default = made(0, tfhd())
    first_key = made(6, tfhd(), first=SYNC)
    by_fragment = made(12, tfhd(1, BASE_IS_MOOF | DURATION | SIZE | FLAGS, u32(256, 5, SYNC)))
    entry = made(18, tfhd(1, BASE_IS_MOOF | ENTRY, u32(1)))
    stored = made(24, tfhd(), flags=ALL, first=NOT_SYNC)
    index = read(init + all_default + first_key + by_fragment + entry + stored)
    assert keys(index) == [6, *range(12, 18), *range(25, 30)]
    assert index.samples.size.tolist() == [10] * 12 + [5] * 6 + [10] * 12
    assert (index.samples.duration * 12800).round().tolist() == [512] * 12 + [256] * 6 + [512] * 12
    assert np.diff(index.samples.position[12:18]).tolist() == [5] * 5


def test_where_the_data_of_a_run_lie() -> None:
    pictures, sound = CLIP[:4], [Sample(20, 1024) for _ in range(5)]
    size = sum(sample.size for sample in pictures)
    init = movie_header(FTYP, Track(), mvex(trex(1), trex(2)))

    def two_runs(base: int) -> bytes:
        header = tfhd(1, BASE_OFFSET, u64(base))
        return moof(box(b"traf", header, trun(pictures[:2], offset=None), trun(pictures[2:], offset=None)))

    absolute = len(init) + len(two_runs(0)) + 8
    index = read(init + two_runs(absolute) + box(b"mdat", bytes(size)))
    assert index.samples.position.tolist() == [absolute, absolute + 500, absolute + 600, absolute + 700]

    # No base of its own: behind the data of the track before, whichever that is.
    def chained(offset: int) -> bytes:
        return moof(
            box(b"traf", tfhd(2, 0), trun(sound, offset=offset, flags=RUN_SIZE)),
            box(b"traf", tfhd(1, 0), tfdt(0), trun(pictures, offset=None)),
        )

    start = len(chained(0)) + 8
    index = read(init + chained(start) + box(b"mdat", bytes(100 + size)))
    assert index.samples.position[0] == len(init) + start + 100

    def chained_defaults(offset: int) -> bytes:
        return moof(
            box(b"traf", tfhd(2, SIZE, u32(20)), trun(sound, offset=offset, flags=RUN_DURATION)),
            box(b"traf", tfhd(3, 0)),
            box(b"traf", tfhd(1, 0), tfdt(0), trun(pictures, offset=0)),
        )

    start = len(chained_defaults(0)) + 8
    index = read(init + chained_defaults(start) + box(b"mdat", bytes(100 + size)))
    assert index.samples.position[0] == len(init) + start + 100


def test_fragments_without_times_go_on_where_the_last_ended() -> None:
    plain = read(movie([Track(CLIP)]))
    assert read(clip(CLIP, 7, times=False)).samples.time == pytest.approx(plain.samples.time)
    far = fragmented(Track(), [fragment(CLIP[:20], 1 << 63, flags=ALL), fragment(CLIP[20:], None, flags=ALL)])
    assert read(far).samples.time == pytest.approx(plain.samples.time)


def test_a_short_decode_time() -> None:
    def made(offset: int) -> bytes:
        return moof(box(b"traf", tfhd(), tfdt(5120, version=0), trun(CLIP, offset=offset, flags=ALL)))

    data = fragmented(Track(), [made(len(made(0)) + 8), box(b"mdat", b"\1" * sum(s.size for s in CLIP))])
    assert read(data).samples.time == pytest.approx(read(movie([Track(CLIP)])).samples.time)


def test_overlapping_fragments_are_marked() -> None:
    plain = [replace(sample, offset=0) for sample in CLIP]
    pieces = [fragment(plain[:20], 0), fragment(plain[20:40], 15 * 512), fragment(plain[40:], 35 * 512)]
    index = read(fragmented(Track(), pieces))
    # A picture of a later fragment that is not later than all of the fragment before adds nothing.
    assert np.flatnonzero(index.samples.having(SampleFlag.OUTSIDE_EDIT)).tolist() == [*range(20, 25)]
    assert index.samples.time[20] == pytest.approx(15 * 512 / 12800)
    assert index.notes == ("5 of 60 samples are overlaid by other fragments",)


def test_a_gap_is_closed_only_beyond_an_hour() -> None:
    far = fragmented(Track(), [fragment(CLIP[:20], 0, flags=ALL), fragment(CLIP[20:], 12800 * 100, flags=ALL)])
    assert read(far).duration == pytest.approx(100 + 40 * 512 / 12800)
    farther = fragmented(Track(), [fragment(CLIP[:20], 0, flags=ALL), fragment(CLIP[20:], 12800 * 4000, flags=ALL)])
    index = read(farther)
    assert index.duration == pytest.approx(60 * 512 / 12800)
    assert index.notes == ("1 jumps in time: closed",)


def test_a_fragment_that_claims_more_than_it_holds() -> None:
    run = full(b"trun", 0, 0x1 | ALL, u32(1000, 0), *(u32(512, 10, SYNC, 0) for _ in range(5)))
    data = movie_header(FTYP, Track(), mvex()) + moof(box(b"traf", tfhd(), run)) + box(b"mdat", bytes(100))
    index = read(data)
    assert len(index.samples) == 5
    assert index.truncated


def test_malformed_track_fragments_are_left_out() -> None:
    broken = moof(
        box(b"traf"),
        box(b"traf", full(b"tfhd", 0, 0)),
        box(b"traf", tfhd(1), box(b"trun"), full(b"trun", 0, 0, u32(0)), box(b"tfdt"), box(b"free")),
        box(b"traf", tfhd(77), trun(CLIP)),
    )
    data = fragmented(Track(), [broken, fragment(CLIP, 0, flags=ALL)])
    assert len(read(data).samples) == 60


def test_a_run_of_defaults_is_limited() -> None:
    run = full(b"trun", 0, 0, u32(0xFFFFFFFF))
    data = movie_header(FTYP, Track(), mvex(trex(1, 1, 1, 1))) + moof(box(b"traf", tfhd(), run))
    with pytest.raises(Exception, match="too many samples: 4,294,967,295, at most 1,000,000"):
        read(data)


def test_fragments_without_a_movie_box_and_before_it() -> None:
    piece = fragment(CLIP, 0, flags=ALL)
    with pytest.raises(NotAVideo, match="a media segment alone"):
        read(FTYP + piece)
    whole = fragmented(Track(), [])
    moved = read(FTYP + piece + whole[len(FTYP) :])
    assert len(moved.samples) == 60
    assert moved.notes == ("1 fragments lie before the movie box",)
    with pytest.raises(CorruptVideo, match="no samples"):
        read(whole)


def test_samples_in_the_movie_and_in_fragments() -> None:
    first, rest = CLIP[:20], CLIP[20:]
    one = movie([Track(first, edits=edit_list([(100, 0, 1 << 16)]))], extra=mvex())
    index = read(one + fragment(rest, 20 * 512, flags=ALL))
    assert index.samples.time == pytest.approx(read(movie([Track(CLIP)])).samples.time)
    assert len(index.samples) == 60


def test_fragments_of_other_tracks_do_not_count() -> None:
    sound = Track([], 2, b"soun", 48000, [box(b"mp4a", bytes(28))])
    head = FTYP + box(b"moov", movie([Track()])[len(FTYP) + 8 : -8], sound.boxes(0), mvex(trex(1), trex(2)))
    with pytest.raises(CorruptVideo, match="no samples"):
        read(head + fragment(CLIP, 0, track=2))
    assert len(read(head + fragment(CLIP, 0, track=2) + fragment(CLIP, 0)).samples) == 60


def test_encrypted_fragments() -> None:
    entries = [visual_entry(b"encv", 320, 240, protection(b"avc1", tenc())), visual_entry()]
    piff_senc = bytes.fromhex("a2394f525a9b4f14a2446c427c648df4")

    def made(samples: list[Sample], at: int, entry: int, *more: bytes) -> bytes:
        def whole(offset: int) -> bytes:
            header = tfhd(1, BASE_IS_MOOF | ENTRY, u32(entry))
            return moof(box(b"traf", header, tfdt(at), trun(samples, offset=offset, flags=ALL), *more))

        return whole(len(whole(0)) + 8) + box(b"mdat", bytes(sum(s.size for s in samples)))

    with pytest.raises(Encrypted, match="60 of 60"):
        read(fragmented(Track(entries=entries), [made(CLIP, 0, 1)]))
    for marked in (full(b"senc", 0, 0, u32(0)), box(b"uuid", piff_senc, u32(0))):
        with pytest.raises(Encrypted, match="60 of 60"):
            read(fragmented(Track(entries=entries), [made(CLIP, 0, 2, marked)]))
    other = box(b"uuid", bytes(16))
    lead = read(fragmented(Track(entries=entries), [made(CLIP[:40], 0, 2, other), made(CLIP[40:], 40 * 512, 1)]))
    assert np.flatnonzero(lead.samples.having(SampleFlag.ENCRYPTED)).tolist() == list(range(40, 60))


def test_only_headers_and_fragments_are_touched() -> None:
    source = CountingSource(BytesSource(clip([replace(s, size=5000) for s in CLIP], 20)))
    read_index(source, Mp4Limits(), describe=as_the_container_says)
    assert sum(end - start for start, end in source.touched()) < 2_500
