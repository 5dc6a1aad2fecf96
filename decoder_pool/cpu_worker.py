"""The child side of the `cpu` decoder: FFmpeg's software decoders through PyAV, one stream at a time.

Started by `decoder_pool.cpu` as a `Worker`. Everything here works on hostile bytes; what it says is checked by the parent.
"""

from __future__ import annotations

import base64
import mmap
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import av
import av.logging
import numpy as np
import numpy.typing as npt
from av.codec.context import Flags
from av.video.codeccontext import VideoCodecContext
from av.video.format import VideoFormat
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane

from decoder_pool.planes import CHROMA_SHIFTS, PlaneLayout
from decoder_pool.worker_main import serve

#: A reply is sent at least this often, in seconds, so that a cancelled run of pictures does not go on for long.
_SLICE = 0.05
#: Runs of at least this many packets are tried without and with all spare packets, nothing between: each try starts over.
_LONG_RUN = 8
#: Decoders by another name than their codec's: FFmpeg's own "av1" only feeds hardware.
_DECODERS = {"av1": "libdav1d"}

#: What FFmpeg says at error level of pictures that are whole, and at warning level of pictures that are not.
_HARMLESS = re.compile(
    r"^(SEI type|sps_id \d+ out of range|mmco: unref short failure|number of reference frames|low_delay flag set incorrectly"
    r"|Header packet passed|Application provided invalid)"
)
_HARMFUL_WARNING = re.compile(r"^(Skipping invalid undecodable NALU|Failed to parse header of NALU|mjpeg_decode_dc: bad vlc)")

_PLANAR = re.compile(r"^(yuv[aj]?(?P<chroma>4\d\d)p|gbra?p|gray)(?P<depth>9|1[0246])?(le)?$")
_FLOAT = re.compile(r"f(16|32)(le|be)?$")
_FULL_RANGE = 2  # AVCOL_RANGE_JPEG
_INTRA = 1  # AV_PICTURE_TYPE_I


def target_format(name: str) -> str:
    """The planar format of FFmpeg in which a picture of format `name` is handed out; `name` itself where it is one.

    Planar YUV, grey and GBR of 8 to 16 bits stay as they are. All others become planar with the same subsampling and depth
    (the next depth that there is): a copy of every value, but for bayer, float and XYZ pictures, which swscale computes.
    Alpha is left out, not composed over anything.
    """
    if _PLANAR.match(name):
        return name
    probe = VideoFormat(name, 16, 16)
    parts = [part for part in probe.components if not part.is_alpha]
    deepest = 16 if _FLOAT.search(name) else max(part.bits for part in parts)
    if probe.is_bayer:
        deepest = 16 if "16" in name else 8
    if probe.is_rgb or probe.has_palette or probe.is_bayer or name.startswith("xyz"):
        family = "gbrp"
    elif len(parts) < 3:
        family = "gray"
    else:
        small = (16 // parts[1].width, 16 // parts[1].height)
        family = f"yuv{({(1, 1): 444, (2, 1): 422, (2, 2): 420, (1, 2): 440, (4, 1): 411, (4, 4): 410})[small]}p"
    for depth in (8, 9, 10, 12, 14, 16):
        candidate = family if depth == 8 else f"{family}{depth}le"
        if depth >= deepest and _exists(candidate):
            return candidate
    return "yuv444p16le"


def _exists(name: str) -> bool:
    try:
        VideoFormat(name, 16, 16)
    except ValueError:
        return False
    return True


@dataclass(slots=True)
class _Found:
    """A wanted sample's fate: a frame, or why there is none."""

    sample: int
    frame: VideoFrame | None = None
    damaged: bool = False
    alone: bool = True
    stand_in: int | None = None
    detail: str = ""


class _Unit:
    """One decode unit at work. `run` yields what is found, and None whenever a time slice is over."""

    def __init__(
        self, context: VideoCodecContext, packets: Sequence[Sequence[int]], wanted: Sequence[int], spare: int, source: int
    ) -> None:
        self._context = context
        self._packets = packets
        self._source = source
        self._spare = min(max(spare, 0), len(packets) - 1)
        self._missing = dict.fromkeys(wanted, "")  # why, as far as it is known
        self._damaged: set[int] = set()
        self._place = {packet[0]: place for place, packet in enumerate(packets)}
        self._stand_in: _Found | None = None
        self._slice_ends = 0.0
        self._fed = 0
        self._errors: dict[int, str] = {}  # by place: what FFmpeg said while it decoded that packet
        self._tainted: int | None = None  # pictures decoded from this place on may be predicted from a damaged one
        self._any_good = False

    def run(self) -> Iterator[_Found | None]:
        """Decodes; every wanted sample is yielded once."""
        self._new_slice()
        core = len(self._packets) - self._spare
        for length in self._lengths(core):
            self._restart()
            for place in range(length):
                yield from self._feed(place)
                if not self._missing:
                    return
                if self._stand_in is not None and self._missing.keys() <= self._damaged:
                    break
            else:
                yield from self._feed(None)
            if not self._missing:
                return
        yield from self._leftovers()

    def _lengths(self, core: int) -> Iterator[int]:
        """How many packets to feed before the decoder is drained, try by try; each costs less than all before it together."""
        total = core + self._spare
        yield core
        step = 1
        # A damaged picture does not get better by feeding more: only the last try, for a picture to stand in, is left.
        while core < _LONG_RUN and step < self._spare and self._missing.keys() - self._damaged:
            yield core + step
            step *= 2
        if self._spare:
            yield total

    def _restart(self) -> None:
        self._context.flush_buffers()
        self._errors.clear()
        self._tainted = None
        self._any_good = False

    def _new_slice(self) -> None:
        self._slice_ends = time.monotonic() + _SLICE

    def _feed(self, place: int | None) -> Iterator[_Found | None]:
        """Feeds one packet, or drains with None, and sorts what comes out."""
        if place is not None:
            self._fed = place + 1
        for frame in self._decode(place):
            found = self._judge(frame)
            if found is not None:
                yield found
                self._new_slice()
        if time.monotonic() > self._slice_ends:
            yield None
            self._new_slice()

    def _decode(self, place: int | None) -> list[VideoFrame]:
        """The one place where FFmpeg's errors are caught: whatever it raises is a note on the packet."""
        frames: list[VideoFrame] = []
        failure = ""
        with av.logging.Capture(local=False) as lines:
            try:
                frames = self._context.decode(self._packet(place))
            except av.EOFError:
                pass
            except (av.FFmpegError, ValueError, OSError) as error:
                failure = f"{type(error).__name__}: {error}"
        said = next((text.strip() for level, _, text in lines if _tells_damage(level, text)), "")
        if (said or failure) and not _HARMLESS.match(said or failure.rpartition("] ")[2]):
            self._errors.setdefault(self._fed - 1, (said or failure)[:200])
        return frames

    def _packet(self, place: int | None) -> av.Packet[Any] | None:
        if place is None:
            return None
        sample, offset, size, _ = self._packets[place]
        # Packet(bytes) would lend the bytes as they are, without the zeros that FFmpeg's bit readers need behind them.
        packet = av.Packet(size)
        filled = os.preadv(self._source, [packet], offset) if size else 0
        if filled != size:
            raise ValueError(f"packet of sample {sample}: {filled} of {size} bytes are there")
        packet.pts = sample
        return packet

    def _judge(self, frame: VideoFrame) -> _Found | None:
        sample = self._packets[self._fed - 1][0] if frame.pts is None else frame.pts
        place = self._place.get(sample, self._fed - 1)
        detail = self._damage(frame, place)
        if detail is not None:
            if sample in self._missing:
                self._missing[sample] = detail
                self._damaged.add(sample)
            return None
        if sample in self._missing:
            del self._missing[sample]
            return _Found(sample, frame, alone=place == 0 and self._fed == 1)
        if self._stand_in is None and len(self._missing) == 1 and place > self._place.get(next(iter(self._missing)), 0):
            self._stand_in = _Found(sample, frame)
        return None

    def _damage(self, frame: VideoFrame, place: int) -> str | None:
        """What is wrong with the picture, None if nothing: its own damage, or that of pictures it may be predicted from."""
        behind = [at for at in self._errors if at <= place]
        own = self._errors.get(place)
        intra = bool(frame.key_frame) or frame.pict_type == _INTRA
        # Without a word from FFmpeg a corrupt frame may only be one before the stream's recovery point: that harms no other.
        harms = frame.is_corrupt and (own is not None or frame.key_frame or self._any_good)
        since = min(behind, default=place if harms else None)
        if since is not None:
            self._tainted = since if self._tainted is None else min(since, self._tainted)
            for at in behind:
                del self._errors[at]
        if frame.is_corrupt:
            return own or "FFmpeg marks the picture as corrupt"
        if own is not None:
            self._errors.setdefault(place, own)  # a second picture of the same packet
            return own
        if intra and self._tainted is not None and place > self._tainted:
            self._tainted = None
        if self._tainted is not None and place >= self._tainted:
            return f"predicted from a damaged picture (sample {self._packets[self._tainted][0]} or later)"
        self._any_good = True
        return None

    def _leftovers(self) -> Iterator[_Found]:
        said = next(iter(self._errors.values()), "")
        for sample, detail in self._missing.items():
            if self._stand_in is not None:
                other = self._stand_in
                why = detail or said or "no picture of its own"
                yield _Found(sample, other.frame, alone=False, stand_in=other.sample, detail=why)
            elif sample in self._damaged:
                yield _Found(sample, damaged=True, alone=False, detail=detail)
            else:
                yield _Found(sample, alone=False, detail=detail or said or "no picture came out of its packets")


def _tells_damage(level: int, text: str) -> bool:
    if level <= av.logging.ERROR:
        return not _HARMLESS.match(text)
    return bool(_HARMFUL_WARNING.match(text))


@dataclass(slots=True)
class _Slot:
    memory: mmap.mmap | None = None

    def replace(self, fd: int, size: int) -> None:
        if self.memory is not None:
            self.memory.close()
        self.memory = mmap.mmap(fd, size)


@dataclass(slots=True)
class _State:
    """What one worker holds: a codec context, the unit at work, the frame that waits for a larger slot, the slots."""

    context: VideoCodecContext | None = None
    refusal: str = ""
    unit: Iterator[_Found | None] | None = None
    source: int = -1
    pending: _Found | None = None
    slots: dict[int, _Slot] = field(default_factory=dict)

    def configure(self, arguments: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Another stream: a new codec context. What the codec refuses is told by every unit, not here."""
        self._drop()
        self.context, self.refusal = None, ""
        try:
            self.context = _open(arguments)
        except (av.FFmpegError, ValueError, OSError, OverflowError) as error:
            self.refusal = f"{type(error).__name__}: {error}"[:200]
        return {}

    def slot(self, arguments: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Memory for pictures: slot `number` is `size` bytes behind the descriptor."""
        self.slots.setdefault(arguments["number"], _Slot()).replace(fds[0], arguments["size"])
        return {}

    def begin(self, arguments: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Begins a unit, whatever became of the last one, and gives what `next` gives."""
        self._drop()
        self.slots = {number: slot for number, slot in self.slots.items() if arguments["held"][number]}
        if self.context is None:
            self.unit = iter([_Found(sample, alone=False, detail=self.refusal) for sample in arguments["wanted"]])
        else:
            self.source = os.dup(fds[0])
            unit = _Unit(self.context, arguments["packets"], arguments["wanted"], arguments["spare"], self.source)
            self.unit = unit.run()
        return self.next(arguments, fds)

    def next(self, arguments: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """The next result, its picture in slot `slot`: or that there is none yet (`more`), that the slot is too small
        (`grow`, in bytes), that all is told (`done`).
        """
        found = self.pending
        if found is None:
            if self.unit is None:
                return {"done": True}
            try:
                found = next(self.unit)
            except StopIteration:
                self._drop()
                return {"done": True}
            if found is None:
                return {"more": True}
        self.pending = None
        return self._tell(found, self.slots.setdefault(arguments["slot"], _Slot()))

    def _tell(self, found: _Found, slot: _Slot) -> dict[str, Any]:
        told: dict[str, Any] = {
            "sample": found.sample,
            "damaged": found.damaged,
            "alone": found.alone,
            "stand_in": found.stand_in,
            "detail": found.detail,
        }
        if found.frame is None:
            return told
        try:
            frame, chroma, depth = _planar(found.frame)
        except (av.FFmpegError, ValueError, KeyError, OSError) as error:
            return told | {"detail": f"{found.frame.format.name} pictures cannot be converted: {error}"[:200]}
        layout = PlaneLayout.of(frame.width, frame.height, depth, chroma)
        if slot.memory is None or len(slot.memory) < layout.size:
            self.pending = found
            found.frame = frame
            return {"grow": layout.size}
        for plane, shape, offset in zip(frame.planes, layout.shapes, layout.offsets, strict=False):
            _copy(plane, slot.memory, shape, offset, layout.itemsize)
        return told | {"picture": self._describe(frame, found.frame, chroma, depth)}

    def _describe(self, frame: VideoFrame, original: VideoFrame, chroma: str, depth: int) -> dict[str, Any]:
        aspect = self.context.sample_aspect_ratio if self.context is not None else None
        full = original.color_range == _FULL_RANGE or original.format.name.startswith("yuvj") or chroma == "rgb"
        return {
            "width": frame.width,
            "height": frame.height,
            "depth": depth,
            "chroma": chroma,
            "colour": [
                int(original.color_primaries),
                int(original.color_trc),
                0 if chroma == "rgb" else int(original.colorspace),
                _FULL_RANGE if full else int(original.color_range),
            ],
            "aspect": [aspect.numerator, aspect.denominator] if aspect else [0, 1],
        }

    def _drop(self) -> None:
        self.unit = self.pending = None
        if self.source >= 0:
            os.close(self.source)
            self.source = -1


def _open(arguments: Mapping[str, Any]) -> VideoCodecContext:
    codec = arguments["codec"]
    context = av.CodecContext.create(_DECODERS.get(codec, codec), "r")
    if not isinstance(context, VideoCodecContext):
        raise ValueError(f"{codec} is no video codec")
    if extradata := base64.b64decode(arguments["extradata"]):
        context.extradata = extradata
    if tag := arguments["codec_tag"]:
        context.codec_tag = tag.to_bytes(4, "little").decode("latin-1")
    if arguments["width"] and arguments["height"]:
        context.width, context.height = arguments["width"], arguments["height"]
    if bits := arguments["bits_per_coded_sample"]:
        context.bits_per_coded_sample = bits
    context.thread_count = arguments["threads"]
    context.thread_type = "SLICE"  # frame threads give each picture several packets late
    # Frames before a recovery point come out as well, marked as corrupt: they are told as damaged, not silently missing.
    context.flags |= Flags.output_corrupt
    options = {"max_pixels": str(arguments["max_pixels"]), "err_detect": "crccheck"}
    if context.name == "libdav1d":
        options["max_frame_delay"] = "1"
    context.options = options
    context.open()
    return context


def _planar(frame: VideoFrame) -> tuple[VideoFrame, str, int]:
    """The frame in a planar format, with its chroma format and bit depth."""
    target = target_format(frame.format.name)
    if target != frame.format.name:
        frame = frame.reformat(format=target)
    match = _PLANAR.match(target)
    if match is None:
        raise ValueError(f"{target} is not planar")
    chroma = match["chroma"] or ("400" if target.startswith("gray") else "rgb")
    if chroma not in CHROMA_SHIFTS:
        raise ValueError(f"chroma format {chroma} is not known")
    return frame, chroma, int(match["depth"] or 8)


def _copy(plane: VideoPlane, memory: mmap.mmap, shape: tuple[int, int], offset: int, itemsize: int) -> None:
    """Copies rows without their padding; those of a picture stored bottom up come in the order in which they are shown."""
    rows, columns = shape
    pitch = abs(plane.line_size)
    given: npt.NDArray[np.uint8] = np.frombuffer(memoryview(plane), np.uint8)
    if (rows - 1) * pitch + columns * itemsize > given.size:
        raise ValueError(f"a plane of {given.size} bytes for {rows} rows of {columns * itemsize}")
    source = np.lib.stride_tricks.as_strided(given, (rows, columns * itemsize), (pitch, 1), writeable=False)
    target = np.frombuffer(memory, np.uint8, rows * columns * itemsize, offset).reshape(rows, columns * itemsize)
    np.copyto(target, source[::-1] if plane.line_size < 0 else source)


def main() -> None:
    """Serves until the parent goes away."""
    av.logging.set_level(av.logging.WARNING)
    av.logging.set_skip_repeated(False)
    state = _State()
    serve({"configure": state.configure, "slot": state.slot, "begin": state.begin, "next": state.next})


if __name__ == "__main__":
    main()
