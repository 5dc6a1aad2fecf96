"""Which demuxer reads a source, decided by its first bytes alone; FFmpeg's own probing is never asked.

FFmpeg's probes accept images, playlists, subtitles, Flash, even random bytes ("bintext"). Here a source either carries the
signature of a known container, and that demuxer is forced, or it is refused, by name where the name is known.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import re
from dataclasses import dataclass
from typing import Literal

#: How much of the source's head is looked at.
HEAD = 1 << 18

#: FFmpeg's names of the demuxers that may be forced.
Demuxer = Literal[
    "mov", "matroska", "mpegts", "mpeg", "flv", "avi", "ogg", "h264", "hevc", "mpegvideo", "m4v", "h263", "mjpeg", "dv",
    "ivf", "gif", "asf", "rm", "mxf",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sniffed:
    """What a source is: exactly one of the three is set."""

    demuxer: Demuxer | None = None
    audio: str = ""  # name of a kind of file that has no moving pictures but sound
    other: str = ""  # what it is instead of a video, with an article


#: ISO/IEC 23008-12 (HEIF), AVIF and MIAF brands: still images and image sequences.
_IMAGE_BRANDS = {
    b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"mif2", b"msf1", b"miaf", b"avif",
    b"avis", b"avio", b"jpeg", b"jpgs", b"j2ki", b"j2is", b"vvic", b"crx ",
}  # fmt: skip
_MOV_BOXES = {b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"moof", b"styp", b"sidx", b"ssix", b"uuid", b"PICT", b"udta"}

_OTHERS: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\x8aMNG", "an MNG animation"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
    (b"8BPS", "a Photoshop image"),
    (b"\xff\x0a", "a JPEG XL image"),
    (b"\0\0\0\x0cJXL ", "a JPEG XL image"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 image"),
    (b"\xff\x4f\xff\x51", "a JPEG 2000 image"),
    (b"qoif", "a QOI image"),
    (b"FWS", "a Flash file (SWF)"),
    (b"CWS", "a Flash file (SWF)"),
    (b"ZWS", "a Flash file (SWF)"),
    (b"%PDF", "a PDF document"),
    (b"%!PS", "a PostScript document"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"PK\x05\x06", "a ZIP archive"),
    (b"Rar!", "a RAR archive"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"\x1f\x8b", "a gzip file"),
    (b"BZh", "a bzip2 file"),
    (b"\xfd7zXZ", "an xz file"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file"),
    (b"\x7fELF", "an ELF program"),
    (b"MZ", "a Windows program"),
    (b"YUV4MPEG2", "raw pictures (YUV4MPEG2)"),
)
_AUDIO: tuple[tuple[bytes, str], ...] = (
    (b"fLaC", "FLAC"),
    (b"#!AMR", "AMR"),
    (b".ra\xfd", "RealAudio"),
    (b"caff", "Core Audio"),
    (b"MThd", "MIDI"),
    (b"MAC ", "Monkey's Audio"),
    (b"wvpk", "WavPack"),
    (b"\x0b\x77", "AC-3"),
)
_TEXTS: tuple[tuple[bytes, str], ...] = (
    (b"#EXTM3U", "a playlist (HLS)"),
    (b"ffconcat", "a playlist (ffconcat)"),
    (b"[playlist]", "a playlist (PLS)"),
    (b"[Reference]", "a playlist (QuickTime reference)"),
    (b"RTSPtext", "a playlist (RTSP)"),
    (b"v=0", "a session description (SDP)"),
    (b"WEBVTT", "subtitles (WebVTT)"),
    (b"<!DOCTYPE html", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"<svg", "an SVG image"),
    (b"{\\rtf", "an RTF document"),
)


def sniff(head: bytes, size: int) -> Sniffed:
    """What the source is; `head` is its first `HEAD` bytes or all of them, `size` its whole size in bytes."""
    return _by_signature(head) or _mxf(head) or _elementary(head) or _text(head) or _unknown(head, size)


def _by_signature(head: bytes) -> Sniffed | None:
    if head[4:8] == b"ftyp":
        return _ftyp(head)
    if head[4:8] in _MOV_BOXES and _plausible_box(head):
        return Sniffed("mov")
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return Sniffed("matroska")
    if head.startswith(b"RIFF"):
        return {
            b"AVI ": Sniffed("avi"),
            b"AVIX": Sniffed("avi"),
            b"WAVE": Sniffed(audio="WAVE"),
            b"WEBP": Sniffed(other="a WebP image"),
        }.get(head[8:12], Sniffed(other="a RIFF file that is no AVI"))
    if head.startswith((b"RF64", b"RIFX")):
        return Sniffed(audio="WAVE")
    if head.startswith(b"FORM") and head[8:12] in (b"AIFF", b"AIFC"):
        return Sniffed(audio="AIFF")
    for magic, demuxer in _DEMUXERS:
        if head.startswith(magic):
            return Sniffed(demuxer)
    if re.match(rb"\x1f\x07\x00[\x3f\xbf]", head):
        return Sniffed("dv")  # IEC 61834 header section
    if _is_mpegts(head):
        return Sniffed("mpegts")
    if head.startswith(b"\xff\xd8\xff"):
        return _jpeg(head)
    if head.startswith(b"BM") and len(head) > 30 and head[14:18] in (b"\x0c\0\0\0", b"\x28\0\0\0", b"\x6c\0\0\0", b"\x7c\0\0\0"):
        return Sniffed(other="a BMP image")
    for magic, name in _OTHERS:
        if head.startswith(magic):
            return Sniffed(other=name)
    for magic, name in _AUDIO:
        if head.startswith(magic):
            return Sniffed(audio=name)
    return _mpeg_audio(head)


_DEMUXERS: tuple[tuple[bytes, Demuxer], ...] = (
    (b"FLV\x01", "flv"),
    (b"OggS\x00", "ogg"),
    (b"DKIF", "ivf"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c", "asf"),
    (b".RMF", "rm"),
    (b"\0\0\1\xba", "mpeg"),
    (b"\0\0\1\xb3", "mpegvideo"),
)


def _plausible_box(head: bytes) -> bool:
    size = int.from_bytes(head[:4], "big")
    return size >= 8 or size in (0, 1)


def _ftyp(head: bytes) -> Sniffed:
    size = min(int.from_bytes(head[:4], "big"), len(head), 4096)
    brands = [head[8:12]] + [head[at : at + 4] for at in range(16, size - 3, 4)]
    if brands[0] in _IMAGE_BRANDS:
        name = "an AVIF image" if any(b in (b"avif", b"avis") for b in brands) else "a HEIF image (HEIC)"
        return Sniffed(other="a raw camera image (CR3)" if brands[0] == b"crx " else name)
    return Sniffed("mov")


def _jpeg(head: bytes) -> Sniffed:
    # Motion JPEG is one JPEG behind the other; so are multi-picture files (CIPA DC-007), which say so in their first APP2.
    pictures = len(re.findall(rb"\xff\xd9\0*\xff\xd8\xff", head))
    return Sniffed("mjpeg") if pictures and b"MPF\0" not in head[: 1 << 16] else Sniffed(other="a JPEG image")


def _is_mpegts(head: bytes) -> bool:
    """Sync bytes at the stride of a transport stream packet, bare, with time stamps (M2TS) or with parity, for 8 packets."""
    for stride in (188, 192, 204):
        for start in range(min(stride * 4, len(head))):
            if head[start] != 0x47:
                continue
            syncs = head[start : start + stride * 8 : stride]
            if syncs.count(0x47) == len(syncs) and (len(syncs) == 8 or (start <= 4 and len(head) - start >= 188)):
                return True
    return False


def _mxf(head: bytes) -> Sniffed | None:
    """A header partition pack, behind a run-in of up to 64 KiB (SMPTE ST 377-1, 5.5 and 6.2)."""
    at = head.find(b"\x06\x0e\x2b\x34\x02\x05\x01\x01\x0d\x01\x02\x01\x01\x02", 0, (1 << 16) + 16)
    return Sniffed("mxf") if at >= 0 else None


def _mpeg_audio(head: bytes) -> Sniffed | None:
    if head.startswith(b"ID3"):
        return Sniffed(audio="MP3")
    if len(head) >= 4 and head[0] == 0xFF:
        if head[1] & 0xF6 == 0xF0:
            return Sniffed(audio="AAC (ADTS)")
        layer, rate, frequency = head[1] >> 1 & 3, head[2] >> 4, head[2] >> 2 & 3
        if head[1] & 0xE0 == 0xE0 and layer and rate not in (0, 15) and frequency != 3:
            return Sniffed(audio="MP3")
    return None


_START_CODE = re.compile(rb"\x00\x00\x01(?=(..))", re.DOTALL)


def _elementary(head: bytes) -> Sniffed | None:
    """Raw elementary streams have no signature: their start codes must make sense together."""
    if re.match(rb"\x00\x00[\x80-\x83]", head) and len(re.findall(rb"\x00\x00[\x80-\x83]", head)) >= 2:
        return Sniffed("h263")  # ITU-T H.263 5.1.1, picture start codes
    units: list[bytes] = [match.group(1) for match in _START_CODE.finditer(head)]
    if not units:
        return None
    # ITU-T H.265 7.3.1.2: forbidden bit 0, type, layer, temporal id plus 1. Parameter sets 33 and 34, slices 0 to 21.
    hevc = [unit[0] >> 1 for unit in units if not unit[0] & 0x80 and unit[1] & 7]
    if _neighbours(hevc, 33, 34) and any(kind <= 21 for kind in hevc) and len(hevc) >= 0.9 * len(units):
        return Sniffed("hevc")
    # ITU-T H.264 7.3.1: forbidden bit 0, parameter sets 7 and 8, slices 1, 2 and 5. Such streams may begin anywhere.
    h264 = [unit[0] & 31 for unit in units if not unit[0] & 0x80]
    parameters = [kind for kind in h264 if kind not in (6, 13, 15)]  # without SEI, SPS extension and subset SPS
    if _neighbours(parameters, 7, 8) and {1, 2, 5} & set(h264) and len(h264) >= 0.9 * len(units):
        return Sniffed("h264")
    # ISO/IEC 14496-2 6.2.1: object sequence B0, visual object B5, video object 00 to 1F, its layer 20 to 2F, picture B6.
    mpeg4 = [unit[0] for unit in units]
    begins = head.startswith(b"\0\0\1") and (mpeg4[0] in (0xB0, 0xB5) or mpeg4[0] <= 0x2F)
    if begins and 0xB6 in mpeg4 and any(0x20 <= code <= 0x2F for code in mpeg4):
        return Sniffed("m4v")
    return None


def _neighbours(kinds: list[int], first: int, second: int) -> bool:
    return any(pair == (first, second) for pair in itertools.pairwise(kinds))


def _text(head: bytes) -> Sniffed | None:
    for mark, encoding in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"), (b"\xef\xbb\xbf", "utf-8")):
        if head.startswith(mark):
            head = head[len(mark) :].decode(encoding, "replace").encode()
            break
    start = head[:4096].lstrip()
    for mark, name in _TEXTS:
        if start[: len(mark)].lower() == mark.lower():
            return Sniffed(other=name)
    if start.startswith(b"<"):
        for tag, name in ((b"<MPD", "a playlist (DASH)"), (b"<SmoothStreamingMedia", "a playlist"), (b"<smil", "a playlist")):
            if tag in start:
                return Sniffed(other=name)
    if start and not re.search(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]", head[:4096]):
        with contextlib.suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder("utf-8")().decode(head[:4096])  # it may end in the middle of a character
            return Sniffed(other="text")
    return None


def _unknown(head: bytes, size: int) -> Sniffed:
    if not any(head):
        return Sniffed(other=f"{size:,} bytes, the first {len(head):,} all zero")
    return Sniffed(other=f"no known container (first bytes {head[:8].hex(' ')})")
