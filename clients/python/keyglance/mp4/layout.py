"""Where the movie and its fragments lie in a file, and whether it is one of the family at all."""

from __future__ import annotations

from dataclasses import dataclass, field

from keyglance.errors import EmptySource, NotAVideo
from keyglance.mp4.boxes import Box, Boxes
from keyglance.mp4.limits import Declined
from keyglance.mp4.source import RandomAccess

#: ISO/IEC 23008-12 (HEIF), AVIF and MIAF brands: still images and image sequences.
_IMAGE_BRANDS = {
    b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"mif2", b"msf1", b"miaf", b"avif",
    b"avis", b"avio", b"jpeg", b"jpgs", b"j2ki", b"j2is", b"vvic", b"crx ",
}  # fmt: skip
#: Beginnings of brands that are read here (the MP4 registration authority's list); families differ in the last letters.
_BRANDS = (
    b"iso", b"mp4", b"mp7", b"avc", b"hvc", b"hev", b"av01", b"vp0", b"qt  ", b"3g", b"M4", b"f4", b"F4", b"mmp", b"MSNV",
    b"das", b"dsms", b"msdh", b"msix", b"cmf", b"cfhd", b"piff", b"ism", b"XAVC", b"KDDI", b"NDS", b"dby", b"caqv", b"CAEP",
    b"nvr", b"isml", b"ccff", b"iprm", b"mqt", b"SDV", b"pana", b"niko", b"avde", b"hlit", b"lmsg", b"sims",
)  # fmt: skip
#: Boxes that a file may begin with instead of `ftyp`.
_FIRST = {b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"moof", b"styp", b"sidx", b"ssix", b"uuid", b"PICT", b"udta"}
_MOST_BRANDS = 4096  # bytes


@dataclass(slots=True)
class Layout:
    """The top-level boxes that matter."""

    moov: Box
    moofs: list[Box] = field(default_factory=list)
    major_brand: bytes = b""
    early: int = 0  # fragments that lie before the movie box


def find(boxes: Boxes) -> Layout:
    """The movie box, and the fragments if it says that there are any or if it comes behind some.

    Raises EmptySource; Declined for what is no file of this family; NotAVideo for its still images and for files that have
    no movie box.
    """
    source = boxes.source
    if source.size == 0:
        raise EmptySource("the source is empty (0 bytes)")
    brand = _family(source)
    top = boxes.children(0, source.size)
    moofs: list[Box] = []
    last = None
    for box in top:
        last = box
        if box.kind == b"moof":
            moofs.append(box)
        elif box.kind == b"moov":
            early = len(moofs)
            if early or _has_fragments(boxes, box):
                moofs += [later for later in top if later.kind == b"moof"]
            return Layout(box, moofs, brand, early)
    if moofs:
        raise NotAVideo(f"{len(moofs)} fragments without the movie box (moov) that describes them: a media segment alone")
    if last is not None and last.overrun:
        raise NotAVideo(f"the file ends {last.overrun:,} bytes before the end of its box {_name(last.kind)}, without a movie box")
    raise NotAVideo("an MP4 file without a movie box (moov)")


def _family(source: RandomAccess) -> bytes:
    """The major brand, empty where none is told."""
    head = bytes(source.read(0, 16))
    if head[4:8] in _FIRST:
        size = int.from_bytes(head[:4], "big")
        if size >= 8 or size in (0, 1):
            return b""
    if head[4:8] != b"ftyp":
        raise Declined(f"no MP4 file (first bytes {head[:8].hex(' ')})")
    data = bytes(source.read(8, max(0, min(int.from_bytes(head[:4], "big") - 8, _MOST_BRANDS))))
    brands = [data[:4], *(data[at : at + 4] for at in range(8, len(data) - 3, 4))]
    if brands[0] in _IMAGE_BRANDS:
        if brands[0] == b"crx ":
            raise NotAVideo("not a video but a raw camera image (CR3)")
        avif = any(brand in (b"avif", b"avis") for brand in brands)
        raise NotAVideo(f"not a video but {'an AVIF image' if avif else 'a HEIF image (HEIC)'}")
    if not any(brand.startswith(_BRANDS) for brand in brands):
        raise Declined(f"brand {_name(brands[0])} is not known here")
    return brands[0]


def _has_fragments(boxes: Boxes, moov: Box) -> bool:
    return any(box.kind == b"mvex" for box in boxes.inside(moov))


def _name(kind: bytes) -> str:
    return repr(kind.decode("latin-1"))
