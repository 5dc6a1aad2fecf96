"""What headers tell, the same for every codec: of a sequence of pictures, and of one sample."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from fractions import Fraction

from keyglance.bitstream.bits import BitstreamError
from keyglance.video import Colour, ColourRange

#: Code points of ITU-T H.273 that mean something; the others are reserved and taken for 'unspecified'.
_PRIMARIES = frozenset({1, *range(4, 13), 22})
_TRANSFERS = frozenset({1, *range(4, 19)})
_MATRICES = frozenset({0, 1, *range(4, 18)})
_UNSPECIFIED = 2

#: log2 of horizontal and vertical subsampling of chroma, by chroma format.
SUBSAMPLING = {"400": (0, 0), "420": (1, 1), "422": (1, 0), "440": (0, 1), "444": (0, 0), "rgb": (0, 0)}


class SampleKind(enum.Enum):
    """What a sample's first picture really is, whatever the container's flags say."""

    #: Decodes alone, and so does all that follows it in decoding order: H.264 and HEVC IDR, a key frame of VP8, VP9 and AV1
    #: (shown), an I picture of a closed group in MPEG-2 and MPEG-4, every picture of an intra-only codec.
    IDR = "IDR"
    CRA = "CRA"  # HEVC clean random access: decodes alone, leading pictures behind it may not
    BLA = "BLA"  # HEVC broken link access: decodes alone, its RASL pictures cannot be decoded
    #: An I picture that starts an open group: H.264 and HEVC with a recovery point SEI, MPEG-2 and MPEG-4 part 2.
    RECOVERY_POINT = "recovery point"
    #: Intra coded, but no random access point: decodes alone in practice, what follows may refer to pictures before it.
    I = "I"  # noqa: E741 - the field's word
    P = "P"
    B = "B"
    #: VP8, VP9, AV1: no picture to show and no start either (an alternate reference frame).
    HIDDEN = "hidden"
    #: VP9, AV1: shows a picture that was decoded earlier and holds nothing of its own (`show_existing_frame`).
    REPEAT = "repeat"
    UNKNOWN = "unknown"

    @property
    def random_access(self) -> bool:
        """True where decoding may start and later pictures come out right."""
        return self in _RANDOM_ACCESS

    @property
    def intra(self) -> bool:
        """True where the picture needs no other picture."""
        return self in _RANDOM_ACCESS or self is SampleKind.I


_RANDOM_ACCESS = frozenset({SampleKind.IDR, SampleKind.CRA, SampleKind.BLA, SampleKind.RECOVERY_POINT})


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """One sample: its kind, whether it holds a single field of a picture, and whether feeding it shows a picture."""

    kind: SampleKind
    field: bool = False
    shown: bool = True


UNKNOWN = SampleFacts(SampleKind.UNKNOWN)


def together(frames: list[tuple[SampleKind, bool]]) -> SampleFacts:
    """A sample of several VP9 or AV1 frames, each (kind, shown): what it shows, which may be one of its hidden frames."""
    intra = all(kind.intra for kind, shown in frames if not shown)
    kind = next((kind for kind, shown in frames if shown), None)
    if kind is None:
        return SampleFacts(SampleKind.I if intra else SampleKind.HIDDEN, shown=False)
    if kind is SampleKind.REPEAT and not all(shown for _, shown in frames):
        return SampleFacts(SampleKind.I if intra else SampleKind.P)
    return SampleFacts(kind)


@dataclass(frozen=True, slots=True)
class SequenceFacts:
    """What the headers in force say of the pictures.

    `width`, `height`: pixels after cropping. `coded_width`, `coded_height`: in whole coding blocks (macroblocks; minimum
    coding blocks in HEVC; 8x8 blocks in VP9 and AV1), before cropping. `sample_aspect`: None where it is not told.
    `interlaced`: None where pictures may be frames or fields. `origin`: pixels cropped at the left and at the top.
    """

    width: int
    height: int
    coded_width: int
    coded_height: int
    bit_depth: int = 8
    chroma_format: str = "420"
    profile: str = ""
    colour: Colour = field(default_factory=Colour)
    sample_aspect: Fraction | None = None
    interlaced: bool | None = None
    origin: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if not (0 < self.width <= 65536 and 0 < self.height <= 65536):
            raise BitstreamError(f"pictures of {self.width}x{self.height}, 1x1 to 65536x65536 allowed")
        if not 8 <= self.bit_depth <= 16:
            raise BitstreamError(f"{self.bit_depth} bits a sample, 8 to 16 allowed")


def aligned(size: int, block: int) -> int:
    """The smallest multiple of `block` that is not below `size`."""
    return -(-size // block) * block


def colour(
    primaries: int = 2, transfer: int = 2, matrix: int = 2, full: bool | None = None, chroma_location: int | None = None
) -> Colour:
    """A `Colour` from code points as they are coded; reserved ones become 'unspecified'."""
    extent = ColourRange.UNSPECIFIED if full is None else ColourRange.FULL if full else ColourRange.LIMITED
    return Colour(
        primaries if primaries in _PRIMARIES else _UNSPECIFIED,
        transfer if transfer in _TRANSFERS else _UNSPECIFIED,
        matrix if matrix in _MATRICES else _UNSPECIFIED,
        extent,
        chroma_location,
    )
