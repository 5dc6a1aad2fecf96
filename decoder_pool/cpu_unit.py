"""One decode unit in FFmpeg's hands: which packets to feed, which pictures to take, and which of them are damaged."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import av
import av.logging
from av.video.frame import VideoFrame

from decoder_pool.cpu_stream import CodecStream

#: A reply is sent at least this often, in seconds, so that a cancelled run of pictures does not go on for long.
_SLICE = 0.05
#: Runs of at least this many packets are tried without and with all spare packets, nothing between: each try starts over.
_LONG_RUN = 8

#: What FFmpeg says at error level of packets that harm no picture, and below it of pictures that are not whole.
_HARMLESS = re.compile(
    r"^(SEI type|sps_id \d+ out of range|mmco: unref short failure|number of reference frames|low_delay flag set incorrectly"
    r"|Header packet passed|no frame!)"
)
_HARMFUL = re.compile(
    r"^(concealing|Skipping invalid undecodable NALU|Failed to parse header of NALU|mjpeg_decode_dc: bad vlc"
    r"|vp3: first frame not a keyframe)"
)
_INTRA = 1  # AV_PICTURE_TYPE_I


@dataclass(slots=True)
class Found:
    """A wanted sample's fate: a frame, or why there is none."""

    sample: int
    frame: VideoFrame | None = None
    damaged: bool = False
    alone: bool = True
    stand_in: int | None = None
    detail: str = ""


class UnitDecoder:
    """One decode unit at work. `run` yields what is found, and None whenever a time slice is over."""

    def __init__(
        self, stream: CodecStream, packets: Sequence[Sequence[int]], wanted: Sequence[int], spare: int, source: int
    ) -> None:
        self._stream = stream
        self._packets = packets
        self._source = source
        self._spare = min(max(spare, 0), max(len(packets) - 1, 0))
        self._missing = dict.fromkeys(wanted, "")  # why, as far as it is known
        self._damaged: set[int] = set()
        self._place = {packet[0]: place for place, packet in enumerate(packets)}
        self._stand_in: Found | None = None
        self._slice_ends = 0.0
        self._fed = 0
        self._said: dict[int, str] = {}  # by place: what FFmpeg said while it decoded that packet
        self._errors: dict[int, str] = {}  # of these, what tells damage, until the picture has come out
        self._tainted: int | None = None  # pictures decoded from this place on may be predicted from a damaged one

    def run(self) -> Iterator[Found | None]:
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
        """How many packets to feed before the decoder is drained, try by try, doubling: together little more than the last."""
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
        self._stream.restart()
        self._said.clear()
        self._errors.clear()
        self._tainted = None

    def _new_slice(self) -> None:
        self._slice_ends = time.monotonic() + _SLICE

    def _feed(self, place: int | None) -> Iterator[Found | None]:
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
                frames = self._stream.context.decode(self._packet(place))
            except av.EOFError:
                pass
            except (av.FFmpegError, ValueError, OSError) as error:
                failure = f"{type(error).__name__}: {error}"
        at = self._fed - 1
        for level, _, text in lines:
            if level <= av.logging.ERROR or _HARMFUL.match(text):
                self._note(at, text)
        if failure:
            self._note(at, failure.rpartition("] ")[2] or failure)
        return frames

    def _note(self, place: int, text: str) -> None:
        text = text.strip()[:200]
        self._said.setdefault(place, text)
        if not _HARMLESS.match(text):
            self._errors.setdefault(place, text)

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

    def _judge(self, frame: VideoFrame) -> Found | None:
        sample = self._packets[self._fed - 1][0] if frame.pts is None else frame.pts
        place = self._place.get(sample, self._fed - 1)
        detail = self._damage(frame, place)
        if detail is not None:
            self._stream.spend(frame)
            if sample in self._missing:
                self._missing[sample] = detail
                self._damaged.add(sample)
            return None
        if sample in self._missing:
            del self._missing[sample]
            return Found(sample, frame, alone=place == 0 and self._fed == 1)
        if self._stand_in is None and len(self._missing) == 1 and place > self._place.get(next(iter(self._missing)), 0):
            self._stand_in = Found(sample, frame)
        return None

    def _damage(self, frame: VideoFrame, place: int) -> str | None:
        """What is wrong with the picture, None if nothing: its own damage, or that of pictures it may be predicted from."""
        behind = [at for at in self._errors if at <= place]
        own = self._errors.get(place)
        if own is None and self._stream.hole(frame):
            own = self._errors[place] = "a part of the picture was never decoded"
            behind.append(place)
        intra = bool(frame.key_frame) or frame.pict_type == _INTRA
        # Without a word from FFmpeg a corrupt frame is one before the stream's recovery point: it knows when that is passed.
        harms = frame.is_corrupt and bool(frame.key_frame)
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
        return None

    def _leftovers(self) -> Iterator[Found]:
        for sample, detail in self._missing.items():
            said = self._said.get(self._place.get(sample, -1), "")
            if self._stand_in is not None:
                other = self._stand_in
                why = detail or said or "no picture of its own"
                yield Found(sample, other.frame, alone=False, stand_in=other.sample, detail=why)
            elif sample in self._damaged:
                yield Found(sample, damaged=True, alone=False, detail=detail)
            else:
                yield Found(sample, alone=False, detail=detail or said or "no picture came out of its packets")
