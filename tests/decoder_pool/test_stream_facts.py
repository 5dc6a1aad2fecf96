"""What FFmpeg keeps for itself, read from boxes, elements and first bits."""

import io
import math
import struct

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoder_pool.boxes import iso_facts, matroska_encrypted, mpegts_scrambled
from decoder_pool.parameter_sets import Configuration
from decoder_pool.picture_types import CODECS, is_predicted
from decoder_pool.sniffing import sniff
from decoder_pool.stream_facts import config_of, matrix_of
from keyglance.display_matrix import IDENTITY, orientation_of
from keyglance.video import Orientation

ONE = 1 << 16


def matrix(a, b, c, d):
    return (round(a * ONE), round(b * ONE), 0, round(c * ONE), round(d * ONE), 0, 0, 0, 1 << 30)


@pytest.mark.parametrize(
    ("given_matrix", "expected"),
    [
        (matrix(1, 0, 0, 1), Orientation()),
        (matrix(0, 1, -1, 0), Orientation(90)),
        (matrix(-1, 0, 0, -1), Orientation(180)),
        (matrix(0, -1, 1, 0), Orientation(270)),
        (matrix(-1, 0, 0, 1), Orientation(0, True)),
        (matrix(1, 0, 0, -1), Orientation(180, True)),  # upside down is mirrored and turned by half
        (matrix(0, 1, 1, 0), Orientation(270, True)),  # transposed
        (matrix(0, -1, -1, 0), Orientation(90, True)),
        (matrix(0, 2, -0.5, 0), Orientation(90)),
        (matrix(0, 0, 0, 0), Orientation()),
    ],
)
def test_quarter_turns(given_matrix, expected):
    notes = []
    assert orientation_of(given_matrix, notes) == expected
    assert notes == []


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_a_matrix_moves_corners_as_its_orientation_says(degrees, mirrored):
    turn = math.radians(degrees)
    flip = -1 if mirrored else 1
    built = matrix(flip * math.cos(turn), flip * math.sin(turn), -math.sin(turn), math.cos(turn))
    assert orientation_of(built, []) == Orientation(degrees, mirrored)


def test_odd_angles_are_taken_to_the_nearest_quarter_and_noted():
    notes = []
    turn = math.radians(80)
    assert orientation_of(matrix(math.cos(turn), math.sin(turn), -math.sin(turn), math.cos(turn)), notes) == Orientation(90)
    assert "80.0 degrees" in notes[0]
    assert orientation_of(matrix(1, 1, 1, 1), notes) == Orientation()
    assert "without inverse" in notes[1]


def test_the_dump_tells_a_rotation_of_one_stream():
    dump = "  Stream #0:0: Video: x\n    Side data:\n      Display Matrix: rotation of -90.00 degrees\n  Stream #0:10: Video: y\n"
    assert orientation_of(matrix_of(dump, 0), []) == Orientation(90)
    assert matrix_of(dump, 10) == IDENTITY
    assert matrix_of(dump, 1) == IDENTITY


def box(kind, *parts):
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def track(number, entries, own=IDENTITY):
    head = bytes(12) + struct.pack(">I", number) + bytes(24) + struct.pack(">9i", *own) + bytes(8)
    return box(
        b"trak",
        box(b"tkhd", head),
        box(b"mdia", box(b"minf", box(b"stbl", box(b"stsd", bytes(8), *entries), box(b"stsz", bytes(8), struct.pack(">I", 7))))),
    )


def protected(default=1):
    tenc = box(b"tenc", bytes(6), bytes([default]), bytes(17))
    return box(b"encv", bytes(78), box(b"sinf", box(b"frma", b"avc1"), box(b"schi", tenc)))


def test_tracks_and_their_protection():
    movie = box(b"mvhd", bytes(36), struct.pack(">9i", *IDENTITY), bytes(28))
    clear = box(b"avc1", bytes(78))
    data = box(b"ftyp", b"isom") + box(
        b"moov", movie, track(1, [clear], matrix(0, 1, -1, 0)), track(2, [protected()]), track(3, [protected(0)]),
        track(4, [clear, protected()]),
    )  # fmt: skip
    tracks = iso_facts(memoryview(data)).tracks
    assert {n: t.encrypted for n, t in tracks.items()} == {1: False, 2: True, 3: False, 4: False}
    assert tracks[4].entry_encrypted(2)
    assert orientation_of(tracks[1].matrix, []) == Orientation(90)
    assert tracks[1].samples == 7


def test_fragments_use_the_latest_initialisation_and_their_own_entry():
    def moof(entry, *more):
        return box(b"moof", box(b"traf", box(b"tfhd", struct.pack(">III", 2 if entry else 0, 1, entry or 0)), *more))

    movie = box(b"mvhd", bytes(36), struct.pack(">9i", *IDENTITY), bytes(28))
    first = box(b"moov", movie, track(1, [protected(), box(b"avc1", bytes(78))]))
    again = box(b"moov", movie, track(1, [box(b"avc1", bytes(78))]))
    data = first + moof(1) + moof(2) + moof(None) + again + moof(None) + moof(None, box(b"senc"))
    facts = iso_facts(memoryview(data))
    assert [fragment.encrypted for fragment in facts.fragments] == [True, False, True, False, True]
    assert facts.tracks[1].entries == [b"encv", b"avc1"]


@given(st.binary(max_size=400), st.integers(0, 100))
def test_no_bytes_upset_the_readers(data, cut):
    movie = box(b"mvhd", bytes(36), struct.pack(">9i", *IDENTITY), bytes(28))
    whole = box(b"moov", movie, track(1, [protected()]), data) + data
    for piece in (data, b"\0\0\0\x10moov" + data, whole[: len(whole) - cut], b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\xff" + data):
        iso_facts(memoryview(piece))
        matroska_encrypted(memoryview(piece))
        mpegts_scrambled(memoryview(piece), 0x100)
        sniff(piece, len(piece))
    for codec in CODECS:
        is_predicted(codec, data)
    for codec in ("h264", "hevc"):
        try:
            Configuration.parse(codec, b"\1" + data).rewrite(data, key=True)
        except ValueError:
            continue


def test_boxes_without_end_end():
    deep = b""
    for _ in range(2000):
        deep = box(b"moov", deep)
    iso_facts(memoryview(deep))
    iso_facts(memoryview(box(b"free") * 200_000))


def element(number, *parts):
    body = b"".join(parts)
    raw = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return raw + (len(body) | 1 << 28).to_bytes(4, "big") + body


@pytest.mark.parametrize(("kind", "expected"), [(1, True), (2, False)])
def test_matroska_encryption_of_the_video_track(kind, expected):
    encryption = element(0x6D80, element(0x6240, element(0x5035, b"")))
    entry = element(0xAE, element(0x83, bytes([kind])), encryption)
    data = element(0x1A45DFA3, b"x") + element(0x18538067, element(0x114D9B74, b"y"), element(0x1654AE6B, entry))
    assert matroska_encrypted(memoryview(data)) is expected


def test_scrambled_transport_streams():
    def packet(pid, control):
        return struct.pack(">BHB", 0x47, pid, control << 6 | 0x10) + bytes(184)

    assert mpegts_scrambled(memoryview(packet(0x100, 3) * 6 + packet(0x101, 0) * 9), 0x100)
    assert not mpegts_scrambled(memoryview(packet(0x100, 0) * 6 + packet(0x101, 3) * 9), 0x100)


def test_a_configuration_record_taken_apart():
    avcc = b"\1\x64\0\x0a\xff\xe1\0\3\x67\1\2\1\0\2\x68\3"
    parsed = Configuration.parse("h264", avcc)
    assert parsed == Configuration(4, (b"\x67\1\2", b"\x68\3"))
    payload = b"\0\0\0\2\x65\x88\0\0\0\1\x06"
    assert parsed.rewrite(payload, key=False) == b"\0\0\0\1\x65\x88\0\0\0\1\x06"
    assert parsed.rewrite(payload, key=True).startswith(b"\0\0\0\1\x67\1\2\0\0\0\1\x68\3\0\0\0\1\x65")
    hvcc = b"\1" + bytes(20) + b"\x01\x01" + b"\x21\0\1\0\2\x42\1"
    assert Configuration.parse("hevc", hvcc) == Configuration(2, (b"\x42\1",))
    for broken in (b"", b"\0\0\0\1\x67", avcc[:9]):
        with pytest.raises(ValueError, match="record"):
            Configuration.parse("h264", broken)


@pytest.mark.parametrize(
    ("codec", "intra", "predicted"),
    [
        ("mpeg4", b"\0\0\1\xb6\x10", b"\0\0\1\xb6\x50"),
        ("mpeg2video", b"\0\0\1\xb3\0\0\0\1\0\0\x0f", b"\0\0\1\0\0\x17"),
        ("theora", b"\x30", b"\x70"),
        ("h263", b"\0\0\x80\x02\x08\x00", b"\0\0\x80\x02\x0a\x00"),
    ],
)
def test_picture_types(codec, intra, predicted):
    assert not is_predicted(codec, intra)
    assert is_predicted(codec, predicted)
    assert not is_predicted("h264", predicted)
    assert not is_predicted(codec, b"")


@pytest.mark.parametrize(
    ("codec", "pixels", "location"),
    [("mjpeg", "yuvj420p", 1), ("mpeg1video", "yuv420p", 1), ("h263", "yuv420p", 1), ("mpeg4", "yuv420p", None)],
)
def test_chroma_is_centred_where_the_codecs_standard_has_it_so(codec, pixels, location):
    out = io.BytesIO()
    with av.open(out, "w", format={"mpeg1video": "mpegts", "h263": "3gp"}.get(codec, "matroska")) as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 176, 144, pixels
        container.mux(stream.encode(av.VideoFrame(176, 144, pixels)))
        container.mux(stream.encode())
    out.seek(0)
    with av.open(out) as container:
        config = config_of(container.streams.video[0], container.dumps_format(), [])
    assert (config.codec, config.colour.chroma_location) == (codec, location)
