"""What is known of a video before any picture is decoded: the `VideoIndex`, the same from every reader of containers.

A *sample* is a stored picture, or a field of one; samples are numbered in decoding order from 0. Times are seconds on the
presentation clock whose zero is the first picture shown.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt


class SampleFlag(enum.IntFlag):
    """What a container says of one sample. Key flags lie; only decoding tells (see `keyglance.sampling`)."""

    NONE = 0
    KEY = 1  # flagged as decodable alone
    OUTSIDE_EDIT = 2  # not shown by a player: outside the edit list, or decoded only for later samples (preroll)
    CORRUPT = 4  # the reader met damage in or around this sample
    ENCRYPTED = 8  # the payload is encrypted


class ColourRange(enum.StrEnum):
    """Which codes mean black and white."""

    LIMITED = "limited"  # luma 16 to 235 at 8 bit
    FULL = "full"  # luma 0 to 255 at 8 bit
    UNSPECIFIED = "unspecified"


@dataclass(frozen=True, slots=True)
class Colour:
    """Colour description by the code points of ITU-T H.273; 2 is 'unspecified' in each."""

    primaries: int = 2
    transfer: int = 2
    matrix: int = 2
    range: ColourRange = ColourRange.UNSPECIFIED
    #: Chroma sample position of 4:2:0 and 4:2:2 by H.273 `Chroma420SampleLocType` (0 left, 1 centre, 2 top-left, …);
    #: None: unspecified.
    chroma_location: int | None = None


@dataclass(frozen=True, slots=True)
class Orientation:
    """How a decoded picture is turned to be shown: mirrored left to right first (if `mirrored`), then turned clockwise.

    `degrees_clockwise` is 0, 90, 180 or 270.
    """

    degrees_clockwise: int = 0
    mirrored: bool = False

    @property
    def swaps_sides(self) -> bool:
        """True where width and height change places."""
        return self.degrees_clockwise in (90, 270)


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """What a decoder needs before the first packet, from codec configuration and bitstream headers."""

    codec: str  # FFmpeg's codec name: h264, hevc, vp8, vp9, av1, mpeg4, mpeg2video, mjpeg, prores, …
    width: int  # coded pixels after cropping, before rotation and sample aspect; 0: not known before decoding
    height: int
    bit_depth: int = 8  # 8 to 16
    chroma_format: str = "420"  # 400, 420, 422, 444, rgb; others (410, 411, 440) as FFmpeg names them
    profile: str = ""
    extradata: bytes = b""
    codec_tag: int = 0  # the container's four-character code, little endian, as FFmpeg's AVCodecParameters.codec_tag
    bits_per_coded_sample: int = 0  # as FFmpeg's AVCodecParameters; palette, screen and raw codecs need it; 0: not known
    sample_aspect: Fraction = Fraction(1)
    colour: Colour = field(default_factory=Colour)


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of one track in decoding order: arrays of one length N.

    `position`: int64 byte offset in the source, -1 where the payload does not lie there in one piece.
    `size`: int64 bytes. `time`: float64 presentation seconds, monotonic only in presentation order; every value finite.
    `duration`: float64 seconds, 0 where unknown. `flags`: uint8 of `SampleFlag`.
    """

    position: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    time: npt.NDArray[np.float64]
    duration: npt.NDArray[np.float64]
    flags: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.size)

    def having(self, flag: SampleFlag) -> npt.NDArray[np.bool_]:
        """A mask of N booleans: the samples that carry `flag`."""
        mask: npt.NDArray[np.bool_] = (self.flags & int(flag)) != 0
        return mask


@dataclass(frozen=True, slots=True)
class VideoIndex:
    """One video track, ready for sampling, and what else the container holds."""

    container: str  # FFmpeg's demuxer name: "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", …
    size_bytes: int
    config: StreamConfig
    samples: Samples
    duration: float  # seconds shown, from the samples and the container (the smaller where the container exaggerates)
    orientation: Orientation = field(default_factory=Orientation)
    track: int = 0  # number of the stream in the container
    other_video_tracks: int = 0  # further tracks of moving pictures, not looked at
    notes: tuple[str, ...] = ()  # oddities met and repaired, one short sentence each
    truncated: bool = False  # the container ends or breaks before the sample count it declares
