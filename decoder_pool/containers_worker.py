"""The child that opens containers: everything of FFmpeg's demuxers happens here, behind `decoder_pool.containers`.

One source at a time: `open` walks all packets of its video tracks once and writes the sample arrays, `packets` writes
payloads, `close` forgets the source. Refusals carry reasons of `keyglance.errors`.
"""

from __future__ import annotations

import base64
import logging
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import av
import av.logging
import numpy as np
from av.stream import Discard, Disposition

from decoder_pool import boxes
from decoder_pool.parameter_sets import Configuration
from decoder_pool.picture_types import CODECS, is_predicted
from decoder_pool.sniffing import HEAD, Sniffed, sniff
from decoder_pool.stream_facts import config_of, matrix_of
from decoder_pool.worker_main import Refusal, serve
from keyglance.display_matrix import orientation_of
from keyglance.timeline import FARTHEST_JUMP, Seconds, repair
from keyglance.video import SampleFlag

_READ = 1 << 17  # bytes of one read by FFmpeg
_OPTIONS = {"threads": "1"}
#: No data references, no further files: `io_open` refuses whatever would get past these.
_CONTAINER_OPTIONS = {"protocol_whitelist": "none", "max_streams": "200"}
#: Payloads that do not lie in the source in one piece are kept; no more than this many times the source, plus 64 MiB.
_KEPT_FACTOR, _KEPT_BASE = 4, 64 << 20
#: Codec configurations are some hundred bytes; those with embedded tables stay far below this.
_MOST_EXTRADATA = 1 << 20
_STILL = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.still_image
#: FFmpeg's full names of the demuxers that have several.
_NAMES = {"mov": "mov,mp4,m4a,3gp,3g2,mj2", "matroska": "matroska,webm"}
_IMAGE_CODECS = ("mjpeg", "png", "bmp", "tiff", "webp", "gif", "jpeg2000", "jpegxl", "jpegls")


class _Source:
    """A file object for FFmpeg over the given bytes; seeks where FFmpeg likes, reads nothing behind the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def read(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        self._at += len(part)
        return part

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._data)}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at


@dataclass(slots=True)
class _Walk:
    """The packets of one track as they came."""

    position: list[int] = field(default_factory=list)  # as FFmpeg tells it, -1 if not
    size: list[int] = field(default_factory=list)
    pts: list[float] = field(default_factory=list)
    dts: list[float] = field(default_factory=list)
    duration: list[float] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    kept: list[bytes | None] = field(default_factory=list)  # None: as it lies in the source at `position`
    extradata: dict[int, bytes] = field(default_factory=dict)  # by number of the sample from which it holds
    palette: bool = False
    empty: int = 0  # packets without payload: the picture before is shown again


@dataclass(slots=True)
class _Opened:
    """What `packets` needs of the source that is open."""

    data: mmap.mmap
    position: np.ndarray[Any, Any]
    size: np.ndarray[Any, Any]
    kept: list[bytes | None]


@dataclass(slots=True)
class _Limits:
    samples: int
    pixels: int
    side: int


def _io_open(url: str, flags: int, options: dict[str, str]) -> Any:
    raise PermissionError(f"a container may not open {url!r}")


def _words(error: BaseException) -> str:
    """FFmpeg's words without what the serving side must not show."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{text} ({type(error).__name__})" if not isinstance(error, av.FFmpegError) else str(text)


def _side_kind(side: Any) -> str:
    try:
        return str(side.data_type)
    except IndexError:  # a kind that PyAV does not know yet
        return ""


#: What FFmpeg's reading may raise on bad input: its own errors (which are OSError, ValueError, EOFError, LookupError,
#: NotImplementedError … at once), the io_open refusal, and PyAV's own stumbling over what it is given. FFmpeg's ENOMEM is
#: among them: a size in the file that no machine has. Python's own MemoryError is not, and ends the worker.
_READ_ERRORS = (av.FFmpegError, OSError, ValueError, EOFError, LookupError, NotImplementedError, RuntimeError, OverflowError)


class _Demuxer:
    """A container opened by a forced demuxer."""

    def __init__(self, data: mmap.mmap, demuxer: str, **options: str) -> None:
        try:
            self.container: Any = av.open(
                _Source(data),
                format=demuxer,
                options=_OPTIONS,
                container_options=_CONTAINER_OPTIONS | options,
                metadata_errors="replace",
                buffer_size=_READ,
                io_open=_io_open,
            )
        except _READ_ERRORS as error:
            raise Refusal("NOT_A_VIDEO", f"a broken {demuxer} container: {_words(error)}") from error
        self.error = ""  # why reading ended early
        self._data = data

    def dump(self) -> str:
        """What `av_dump_format` says; PyAV keeps display matrices and chroma locations to itself otherwise."""
        level = av.logging.get_level()
        av.logging.set_level(av.logging.INFO)
        try:
            return str(self.container.dumps_format())
        finally:
            av.logging.set_level(level)

    @property
    def videos(self) -> list[Any]:
        return [stream for stream in self.container.streams if stream.type == "video"]

    def walk(self, streams: Sequence[Any], limits: _Limits) -> dict[int, _Walk]:
        """All packets of the streams, by stream index."""
        wanted = {stream.index for stream in streams}
        for stream in self.container.streams:
            if stream.index not in wanted:
                stream.discard = Discard.all
        walks = {index: _Walk() for index in wanted}
        bases = {s.index: float(s.time_base) if s.time_base else 0.0 for s in streams}
        budget = _KEPT_FACTOR * len(self._data) + _KEPT_BASE
        count = 0
        for packet in self._packets(streams):
            walk = walks[packet.stream_index]
            if packet.size == 0:
                walk.empty += 1
                continue
            count += 1
            if count > limits.samples:
                raise Refusal("TOO_LARGE", f"samples {count} {limits.samples}")
            budget -= self._take(walk, packet, bases[packet.stream_index])
            if budget < 0:
                raise Refusal("NOT_A_VIDEO", "a container that unpacks to many times its own size")
        return walks

    def _packets(self, streams: Sequence[Any]) -> Iterator[Any]:
        """All packets until the end, or until FFmpeg gives up."""
        packets = self.container.demux(list(streams))
        while True:
            try:
                packet = next(packets)
            except StopIteration:
                return
            except _READ_ERRORS as error:
                self.error = _words(error)
                return
            if packet.size == 0 and packet.dts is None and packet.pts is None:
                continue  # PyAV's own, to flush decoders
            yield packet

    def _take(self, walk: _Walk, packet: Any, base: float) -> int:
        pts, dts, position, payload = packet.pts, packet.dts, packet.pos, bytes(packet)
        flags = SampleFlag.KEY if packet.is_keyframe else SampleFlag.NONE
        if packet.is_discard:
            flags |= SampleFlag.OUTSIDE_EDIT
        if packet.is_corrupt:
            flags |= SampleFlag.CORRUPT
        for side in packet.iter_sidedata():
            match _side_kind(side):
                case "encryption_info":
                    flags |= SampleFlag.ENCRYPTED
                case "new_extradata":
                    walk.extradata[len(walk.size)] = bytes(side)
                case "palette":
                    walk.palette = True
        in_place = position is not None and self._data[position : position + len(payload)] == payload
        walk.position.append(-1 if position is None else position)
        walk.size.append(len(payload))
        walk.pts.append(float("nan") if pts is None or not base else pts * base)
        walk.dts.append(float("nan") if dts is None or not base else dts * base)
        walk.duration.append(max(0.0, (packet.duration or 0) * base))
        walk.flags.append(int(flags))
        walk.kept.append(None if in_place else payload)
        return 0 if in_place else len(payload)


class ContainerReader:
    """The worker's one source at a time."""

    def __init__(self) -> None:
        self._opened: _Opened | None = None

    def open(self, arguments: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Indexes the source behind the first descriptor and writes the sample arrays into the second."""
        self.close({}, ())
        data = mmap.mmap(fds[0], arguments["size"], prot=mmap.PROT_READ)
        sniffed = sniff(data[:HEAD], len(data))
        if sniffed.audio:
            raise Refusal("NO_VIDEO_STREAM", f"an audio file ({sniffed.audio}), without moving pictures")
        if sniffed.demuxer is None:
            raise Refusal("NOT_A_VIDEO", f"not a video but {sniffed.other}")
        index = _Index(data, sniffed, _Limits(arguments["samples"], arguments["pixels"], arguments["side"]))
        values, arrays, self._opened = index.result()
        os.pwrite(fds[1], b"".join(array.tobytes() for array in arrays), 0)
        return values

    def packets(self, arguments: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Writes the payloads of ranges of samples, one behind the other, into the descriptor."""
        opened = self._opened
        if opened is None:
            raise Refusal("INTERNAL", "no source is open")
        offset = 0
        for start, stop in arguments["ranges"]:
            for number in range(start, stop):
                kept = opened.kept[number]
                if kept is None:
                    at = int(opened.position[number])
                    kept = opened.data[at : at + int(opened.size[number])]
                while kept:
                    written = os.pwrite(fds[0], kept, offset)
                    kept, offset = kept[written:], offset + written
        return {"written": offset}

    def close(self, arguments: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Forgets the source."""
        if self._opened is not None:
            self._opened.data.close()
            self._opened = None
        return {}


class _Index:
    """The index of one source, made step by step."""

    def __init__(self, data: mmap.mmap, sniffed: Sniffed, limits: _Limits) -> None:
        assert sniffed.demuxer is not None
        self._data = data
        self._limits = limits
        self._notes: list[str] = []
        self._demuxer = sniffed.demuxer
        self._errors, _ = av.logging.get_last_error()  # FFmpeg's count since the process began
        self._facts = boxes.iso_facts(memoryview(data)) if sniffed.demuxer == "mov" else boxes.IsoFacts()
        self._first = _Demuxer(data, sniffed.demuxer)
        self._dump = self._first.dump()

        candidates = self._moving(self._first)
        walks = self._first.walk(candidates, self._limits)
        self._stream = self._main(candidates, walks)
        self._others = sum(1 for s in candidates if s.index != self._stream.index and walks[s.index].size)
        self._walk = walks[self._stream.index]
        self._config = config_of(self._stream, self._dump, self._notes)
        self._check()
        self._times, self._step = self._timeline(self._walk)
        self._declared = self._facts.tracks.get(self._stream.id, boxes.TrackFacts()).samples
        if self._demuxer == "mov" and (
            self._declared > len(self._walk.size) or any(f & SampleFlag.OUTSIDE_EDIT for f in self._walk.flags)
        ):
            self._add_hidden()
        self._mark_encrypted()
        self._correct_key_flags()
        self._carry_configurations()

    def _moving(self, demuxer: _Demuxer) -> list[Any]:
        videos = demuxer.videos
        if not videos:
            kinds = sorted({stream.type for stream in demuxer.container.streams})
            raise Refusal(
                "NO_VIDEO_STREAM", f"no video stream in the {self._demuxer} container (streams: {', '.join(kinds) or 'none'})"
            )
        moving = [stream for stream in videos if not stream.disposition & _STILL]
        if not moving:
            raise Refusal("NO_VIDEO_STREAM", "no moving pictures, only cover art")
        known = [stream for stream in moving if stream.codec_context is not None]
        if not known:
            raise Refusal("UNSUPPORTED_CODEC", "no decoder is known for the video stream")
        return known

    def _main(self, candidates: list[Any], walks: dict[int, _Walk]) -> Any:
        """The main track: one that has samples and a size, that is not another's auxiliary, the default one, the first."""
        filled = [stream for stream in candidates if walks[stream.index].size]
        if not filled:
            detail = f": {self._first.error}" if self._first.error else ""
            raise Refusal("CORRUPT_VIDEO", f"the video stream has no samples{detail}")
        best = max(filled, key=lambda s: self._preference(s, walks[s.index]))
        sounds = any(stream.type == "audio" for stream in self._first.container.streams)
        image = best.codec_context.codec.canonical_name in _IMAGE_CODECS
        if image and sounds and self._data[8:11] == b"M4A" and len(walks[best.index].size) == 1:
            raise Refusal("NO_VIDEO_STREAM", "no moving pictures, only cover art")
        return best

    @staticmethod
    def _preference(stream: Any, walk: _Walk) -> tuple[bool, ...] | tuple[Any, ...]:
        disposition = stream.disposition
        return (
            stream.codec_context.width > 0,
            not disposition & Disposition.dependent,
            bool(disposition & Disposition.default),
            len(walk.size) > 1,
            -stream.index,
        )

    def _check(self) -> None:
        pixels = self._config.width * self._config.height
        if pixels > self._limits.pixels:
            raise Refusal("TOO_LARGE", f"pixels {pixels} {self._limits.pixels}")
        side = max(self._config.width, self._config.height)
        if side > self._limits.side:
            raise Refusal("TOO_LARGE", f"side {side} {self._limits.side}")
        if len(self._config.extradata) > _MOST_EXTRADATA:
            raise Refusal("CORRUPT_VIDEO", f"a codec configuration of {len(self._config.extradata):,} bytes")
        if self._walk.palette and self._demuxer == "mov" and self._config.codec not in _IMAGE_CODECS:
            raise Refusal("UNSUPPORTED_CODEC", f"{self._config.codec} with a palette in the container is not read")

    def _timeline(self, walk: _Walk) -> tuple[Seconds, float]:
        rate = self._stream.guessed_rate or self._stream.average_rate
        timeline = repair(np.array(walk.pts), np.array(walk.dts), float(rate) if rate else None)
        self._notes += timeline.notes
        return timeline.times, timeline.step

    def _add_hidden(self) -> None:
        """Takes the whole sample table for the index where the edit list leaves stored pictures out or repeats some.

        FFmpeg gives the samples by the edit list; a second reading without it gives each stored sample once. Shown ones
        keep their first time by the edit list, the others get the place that their media time says, and are marked.
        """
        whole = _Demuxer(self._data, self._demuxer, ignore_editlist="1")
        streams = [stream for stream in whole.videos if stream.index == self._stream.index]
        full = whole.walk(streams, self._limits)[self._stream.index] if streams else _Walk()
        shown: dict[tuple[int, int], float] = {}
        for key, time, flags in zip(
            zip(self._walk.position, self._walk.size, strict=True), self._times, self._walk.flags, strict=True
        ):
            if not flags & SampleFlag.OUTSIDE_EDIT:
                shown.setdefault(key, float(time))
        keys = list(zip(full.position, full.size, strict=True))
        if (
            not shown
            or len(set(keys)) != len(keys)
            or not set(zip(self._walk.position, self._walk.size, strict=True)) <= set(keys)
        ):
            return  # nothing to go by: the edit list's own walk stays
        media = repair(np.array(full.pts), np.array(full.dts), 1 / self._step).times
        visible = np.array([key in shown for key in keys])
        times = np.array([shown.get(key, np.nan) for key in keys])
        shift = float(np.median((times - media)[visible]))
        marked = [f if v else f | int(SampleFlag.OUTSIDE_EDIT) for f, v in zip(full.flags, visible, strict=True)]
        self._walk = replace(full, flags=marked)
        self._times = np.where(visible, times, media + shift)
        self._first.error = self._first.error or whole.error

    def _mark_encrypted(self) -> None:
        flags = np.array(self._walk.flags, dtype=np.uint8)
        track = self._facts.tracks.get(self._stream.id)
        encrypted = (flags & int(SampleFlag.ENCRYPTED)) != 0
        if track is not None and not self._facts.fragments and track.encrypted:
            encrypted[:] = True
        mine = [fragment for fragment in self._facts.fragments if fragment.track == self._stream.id]
        if mine:
            starts = np.array([fragment.position for fragment in mine])
            marks = np.array([fragment.encrypted for fragment in mine])
            at = np.searchsorted(starts, np.array(self._walk.position), side="right") - 1
            encrypted |= (at >= 0) & marks[np.maximum(at, 0)]
        view = memoryview(self._data)
        if (
            (self._demuxer == "matroska" and boxes.matroska_encrypted(view))
            or (self._demuxer == "asf" and boxes.asf_encrypted(view))
            or (self._demuxer == "mpegts" and boxes.mpegts_scrambled(view, self._stream.id))
        ):
            encrypted[:] = True
        view.release()
        share = float(encrypted.mean())
        keys = (flags & int(SampleFlag.KEY)) != 0
        if share >= 0.5 or (share > 0 and keys.any() and not (keys & ~encrypted).any()):
            raise Refusal("ENCRYPTED", f"{int(encrypted.sum())} of {len(encrypted)} samples are encrypted")
        flags[encrypted] |= int(SampleFlag.ENCRYPTED)
        self._walk.flags = flags.tolist()

    def _correct_key_flags(self) -> None:
        if self._config.codec not in CODECS:
            return
        flagged = [number for number, flags in enumerate(self._walk.flags) if flags & SampleFlag.KEY]
        lies = [number for number in flagged if is_predicted(self._config.codec, self._payload(number))]
        for number in lies:
            self._walk.flags[number] &= ~int(SampleFlag.KEY)
        if lies:
            self._notes.append(f"{len(lies)} of {len(flagged)} key flags are on predicted pictures")

    def _carry_configurations(self) -> None:
        walk, codec = self._walk, self._config.codec
        changes = {number: record for number, record in walk.extradata.items() if record != self._config.extradata}
        if not changes:
            return
        if codec not in ("h264", "hevc"):
            if codec not in ("av1", "vp8", "vp9"):  # those carry their headers in the bitstream
                self._notes.append(f"the {codec} configuration changes {len(changes)} times, which is not followed")
            return
        try:
            current = first = Configuration.parse(codec, self._config.extradata)
            for number, flags in enumerate(walk.flags):
                if number in changes:
                    current = Configuration.parse(codec, changes[number])
                walk.kept[number] = current.rewrite(self._payload(number), key=bool(flags & SampleFlag.KEY))
        except ValueError as error:
            self._notes.append(f"the {codec} configuration changes into one that cannot be read: {error}")
            return
        walk.position = [-1] * len(walk.size)
        walk.size = [len(payload) for payload in walk.kept if payload is not None]
        self._config = replace(self._config, extradata=first.annexb)

    def _payload(self, number: int) -> bytes:
        kept, position = self._walk.kept[number], self._walk.position[number]
        return self._data[position : position + self._walk.size[number]] if kept is None else kept

    def result(self) -> tuple[dict[str, Any], list[np.ndarray[Any, Any]], _Opened]:
        """The reply's values, the arrays in the order of `Samples`, and what `packets` needs."""
        walk, config = self._walk, self._config
        flags = np.array(walk.flags, dtype=np.uint8)
        shown = (flags & int(SampleFlag.OUTSIDE_EDIT)) == 0
        if not shown.any():
            raise Refusal("CORRUPT_VIDEO", f"the edit list leaves out all {len(shown)} samples")
        times = self._times - float(self._times[shown].min())
        durations = np.array(walk.duration)
        durations[durations > FARTHEST_JUMP] = 0.0  # as unbelievable as a jump of that size, which the timeline closed
        ends = times + np.where(durations > 0, durations, self._step)
        duration = max(0.0, float(ends[shown].max()))
        if not (flags & int(SampleFlag.KEY)).any():
            self._notes.append("no sample is flagged as a keyframe")
        truncated = self._truncated()
        in_place = np.array([kept is None for kept in walk.kept])
        position = np.array(walk.position, dtype=np.int64)
        size = np.array(walk.size, dtype=np.int64)
        if self._demuxer == "mov":
            matrix = self._facts.tracks.get(self._stream.id, boxes.TrackFacts()).matrix
        else:
            matrix = matrix_of(self._dump, self._stream.index)
        orientation = orientation_of(matrix, self._notes)
        colour = config.colour
        values = {
            "container": _NAMES.get(self._demuxer, self._demuxer),
            "codec": config.codec,
            "width": config.width,
            "height": config.height,
            "bit_depth": config.bit_depth,
            "chroma_format": config.chroma_format,
            "profile": config.profile,
            "extradata": base64.b64encode(config.extradata).decode(),
            "codec_tag": config.codec_tag,
            "bits_per_coded_sample": config.bits_per_coded_sample,
            "sample_aspect": [config.sample_aspect.numerator, config.sample_aspect.denominator],
            "colour": [colour.primaries, colour.transfer, colour.matrix, colour.range.value, colour.chroma_location],
            "degrees": orientation.degrees_clockwise,
            "mirrored": orientation.mirrored,
            "samples": len(size),
            "duration": duration,
            "track": self._stream.index,
            "other_video_tracks": self._others,
            "notes": [note[:300] for note in self._notes[:32]],
            "truncated": truncated,
        }
        arrays = [np.where(in_place, position, -1), size, times, durations, flags]
        return values, arrays, _Opened(self._data, position, size, walk.kept)

    def _truncated(self) -> bool:
        """Whether the container ends or breaks early; told by the flag alone, so not noted."""
        if self._first.error or self._walk.flags[-1] & SampleFlag.CORRUPT:
            return True
        # AVI's header counts pictures that were dropped while it was recorded.
        found = len(self._walk.size) + self._walk.empty
        declared = max(self._declared, self._stream.frames) / {"mov": 1, "avi": 2}.get(self._demuxer, float("inf"))
        errors, last = av.logging.get_last_error()
        broke = errors > self._errors and last is not None and ("partial file" in last[2] or "ended prematurely" in last[2])
        return declared > found or broke


def main() -> None:
    """Serves one parent."""
    logging.getLogger("libav").addHandler(logging.NullHandler())
    logging.getLogger("libav").propagate = False
    av.logging.set_level(av.logging.ERROR)
    reader = ContainerReader()
    serve({"open": reader.open, "packets": reader.packets, "close": reader.close})


if __name__ == "__main__":
    main()
