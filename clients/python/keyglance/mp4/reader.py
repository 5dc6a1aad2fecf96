"""From a file to its `VideoIndex`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import hypot

import numpy as np
import numpy.typing as npt

from keyglance.display_matrix import IDENTITY, orientation_of
from keyglance.errors import CorruptVideo, Encrypted, NotAVideo, NoVideoStream, TooLarge
from keyglance.mp4.boxes import Boxes
from keyglance.mp4.edits import Edit, first_edit, read_edits, shown_times
from keyglance.mp4.fragments import read_fragments
from keyglance.mp4.headers import Describe, by_bitstream
from keyglance.mp4.layout import Layout, find
from keyglance.mp4.limits import Budget, Declined, Mp4Limits
from keyglance.mp4.media import Media, declared_samples, read_media
from keyglance.mp4.movie import Movie, Track, combined, read_movie
from keyglance.mp4.sample_entry import SampleEntry
from keyglance.mp4.source import RandomAccess
from keyglance.timeline import DEFAULT_RATE, FARTHEST_JUMP, FARTHEST_OFFSET, FASTEST, repair
from keyglance.video import Colour, ColourRange, SampleFlag, Samples, StreamConfig, VideoIndex

#: FFmpeg's name of its demuxer for this family.
CONTAINER = "mov,mp4,m4a,3gp,3g2,mj2"

#: Bytes that `Beginnings` gives at most.
_BEGINNING = 1 << 16
_MOST_NOTES = 32
#: Handlers of tracks that hold no moving pictures (ISO/IEC 14496-12 and its registration authority; QuickTime).
_OTHER_HANDLERS = {
    b"soun", b"text", b"sbtl", b"subt", b"subp", b"clcp", b"tmcd", b"meta", b"hint", b"odsm", b"sdsm", b"crsm", b"mp7s",
    b"ocsm", b"ipsm", b"mjsm", b"auxv", b"pict", b"fdsm", b"priv", b"data", b"haptic",
}  # fmt: skip
#: Samples may share bytes, but their sizes are no more in all than this many times the file, plus 256 MiB.
_SHARED_FACTOR, _SHARED_BASE = 8, 256 << 20
#: Sample aspects beyond this, or below its inverse, are taken for errors.
_WIDEST_ASPECT = 20


def read_index(source: RandomAccess, limits: Mp4Limits | None = None, *, describe: Describe = by_bitstream) -> VideoIndex:
    """The index of an MP4, MOV or 3GP file, from as few bytes of it as that needs.

    `describe` corrects the configuration as the container tells it; the beginnings of samples that it gets are at most
    64 KiB long.

    Raises `Declined` where another reader should try, and else EmptySource, NotAVideo, NoVideoStream, Encrypted,
    CorruptVideo (no samples) or TooLarge. Errors of the source itself pass through.
    """
    limits = limits if limits is not None else Mp4Limits()
    boxes = Boxes(source, Budget(limits))
    layout = find(boxes)
    movie = read_movie(boxes, layout.moov, limits)
    notes: list[str] = []
    if layout.moov.overrun:
        if not any(track.handler == b"vide" for track in movie.tracks):
            raise NotAVideo(f"the file ends {layout.moov.overrun:,} bytes before the end of its movie box")
        notes.append(f"the file ends {layout.moov.overrun:,} bytes before the end of its movie box")
    if layout.early:
        notes.append(f"{layout.early} fragments lie before the movie box")
    candidates = _candidates(boxes, layout, movie)
    error: CorruptVideo | None = None
    for candidate in _by_preference(candidates, layout, movie):
        others = sum(1 for each in candidates if each is not candidate and each.samples)
        try:
            return _index(boxes, movie, candidate, others, limits, [*notes], describe)
        except CorruptVideo as damage:
            error = error or damage  # none of its samples is there; perhaps another track has some
    raise error or CorruptVideo("the video track has no samples")


@dataclass(slots=True)
class _Candidate:
    """A track of moving pictures."""

    track: Track
    samples: int  # that it claims to have
    fragments: Media | None


def _candidates(boxes: Boxes, layout: Layout, movie: Movie) -> list[_Candidate]:
    """All tracks of moving pictures."""
    tracks = [track for track in movie.tracks if track.handler == b"vide"]
    if not tracks:
        unknown = [track.handler for track in movie.tracks if track.handler not in _OTHER_HANDLERS]
        if unknown:
            raise Declined(f"no video track, but one of handler {unknown[0].decode('latin-1')!r}")
        kinds = sorted({track.handler.decode("latin-1") for track in movie.tracks})
        raise NoVideoStream(f"no video track (tracks: {', '.join(kinds) or 'none'})")
    stills = {number for track in movie.tracks for number in track.chapters}
    tracks = [track for track in tracks if track.id not in stills]
    if not tracks:
        raise NoVideoStream("no moving pictures, only chapter images")
    fragments = read_fragments(boxes, layout.moofs, movie.defaults, {track.id for track in tracks}) if layout.moofs else {}
    return [
        _Candidate(track, declared_samples(boxes, track) + len(fragments.get(track.id, ())), fragments.get(track.id))
        for track in tracks
    ]


def _by_preference(candidates: Sequence[_Candidate], layout: Layout, movie: Movie) -> list[_Candidate]:
    """Those with samples; first the main track: one that has a size, is enabled, has more than one sample, the first."""
    filled = sorted((each for each in candidates if each.samples), key=_preference, reverse=True)
    if filled and layout.major_brand[:3] == b"M4A" and any(track.handler == b"soun" for track in movie.tracks):
        entries = filled[0].track.entries
        if filled[0].samples == 1 and entries and entries[0].codec == "mjpeg":
            raise NoVideoStream("no moving pictures, only cover art")
    return filled


def _preference(candidate: _Candidate) -> tuple[bool, bool, bool, int]:
    track = candidate.track
    wide = any(entry.width for entry in track.entries)
    return wide, track.enabled, candidate.samples > 1, -track.number


def _index(
    boxes: Boxes,
    movie: Movie,
    main: _Candidate,
    others: int,
    limits: Mp4Limits,
    notes: list[str],
    describe: Describe,
) -> VideoIndex:
    track, size_bytes = main.track, boxes.source.size
    media = read_media(boxes, track)
    if media is not None and main.fragments is not None:
        media = Media.joined(media, main.fragments)
    elif media is None:
        media = main.fragments
    if media is None:
        raise CorruptVideo("the video track has no samples")
    notes += media.notes
    # What the movie box lists but fragments follow is shown as it is: players, too, take edit lists there for a shift.
    edits = [] if main.fragments is not None else _edits(boxes, movie, track, limits)
    entry = _entry(track, media, notes)
    if not media.encrypted.all():
        _mark_encrypted(track, media)
    missing, flags = _cut(media, size_bytes)
    _refuse_encrypted(track, media)
    seconds, step = _seconds(media, track.timescale, notes)
    times, outside = _shown(edits, media, seconds, track.timescale, notes)
    flags[outside] |= int(SampleFlag.OUTSIDE_EDIT)
    flags[media.key] |= int(SampleFlag.KEY)
    flags[media.encrypted] |= int(SampleFlag.ENCRYPTED)
    if not media.key.any():
        notes.append("no sample is flagged as a keyframe")
    duration = media.duration / track.timescale
    duration[duration > FARTHEST_JUMP] = 0.0  # as unbelievable as a jump of that size, which the timeline closes
    inside = times if not outside.any() else times[~outside]
    zero = float(inside.min())
    ends = times + np.where(duration > 0, duration, step)
    end = float((ends if inside is times else ends[~outside]).max())
    length = max(0.0, end - zero)
    if length > limits.seconds:
        raise TooLarge.over("seconds", length, limits.seconds)
    times -= zero

    def beginning(sample: int) -> bytes:
        return bytes(boxes.source.read(int(media.position[sample]), min(int(media.size[sample]), _BEGINNING)))

    config = _config(entry, _aspect(movie, track, entry, notes))
    config, disagreements = describe(config, beginning, int(media.key.argmax()))
    notes += disagreements
    _check_size(config, limits)
    return VideoIndex(
        container=CONTAINER,
        size_bytes=size_bytes,
        config=config,
        samples=Samples(media.position, media.size, times, duration, flags),
        duration=length,
        orientation=orientation_of(combined(movie, track), notes),
        track=track.number,
        other_video_tracks=others,
        notes=tuple(notes[:_MOST_NOTES]),
        truncated=missing,
    )


def _edits(boxes: Boxes, movie: Movie, track: Track, limits: Mp4Limits) -> list[Edit]:
    if track.edits is None:
        return []
    return read_edits(boxes.read(track.edits), movie.timescale, track.timescale, limits.edits)


def _entry(track: Track, media: Media, notes: list[str]) -> SampleEntry:
    """The sample entry that describes all samples as far as a decoder must know before the first."""
    entries, used = track.entries, media.entry
    if not entries:
        raise Declined("the video track has no sample description")
    if (used == used[0]).all():
        numbers = [int(used[0])]
    else:
        numbers = np.flatnonzero(np.bincount(np.minimum(used, len(entries) + 1))).tolist()
        first = int(used[0])
        numbers.sort(key=lambda number: number != first)
    if max(numbers) > len(entries) or min(numbers) < 1:
        raise Declined(f"samples refer to sample description {max(numbers)} of {len(entries)}")
    described = [entries[number - 1] for number in numbers]
    entry = described[0]
    for each in described:
        reference = each.data_reference
        if 1 <= reference <= len(track.external) and track.external[reference - 1]:
            raise NotAVideo("the pictures lie in another file, which this one only names")
    if not entry.codec:
        raise Declined(f"codec {entry.kind.decode('latin-1')!r} is not known here")
    if len(described) > 1:
        if any(each.codec != entry.codec for each in described):
            raise Declined("the codec changes within the track")
        changes = any(each.extradata != entry.extradata for each in described)
        if changes and entry.codec in ("h264", "hevc"):
            raise Declined(f"the {entry.codec} configuration changes within the track")
        if changes and entry.codec not in ("av1", "vp8", "vp9"):  # those carry their headers in the bitstream
            notes.append(f"the {entry.codec} configuration changes, which is not followed")
    if entry.clean_aperture is not None:
        wide, high = entry.clean_aperture
        if wide != entry.width or high != entry.height:
            notes.append(f"clean aperture {float(wide):g}x{float(high):g} of {entry.width}x{entry.height} is not applied")
    return entry


def _mark_encrypted(track: Track, media: Media) -> None:
    protected = np.array([False, *(entry.encrypted for entry in track.entries)])
    if protected.any():
        media.encrypted |= protected[media.entry]


def _cut(media: Media, size_bytes: int) -> tuple[bool, npt.NDArray[np.uint8]]:
    """Leaves out samples without payload and those behind the end of the source, cuts the one that lies across it.

    Gives whether samples are missing, and the flags to begin with.
    """
    empty = media.size <= 0
    ends = media.position + media.size
    beyond = (media.position < 0) | (ends > size_bytes)
    missing = media.declared > len(media)
    if beyond.any() or empty.any():
        inside = (media.position >= 0) & (media.position < size_bytes)
        missing = missing or bool((~inside & ~empty).any())
        media.keep(inside & ~empty)
        if not len(media):
            raise CorruptVideo(f"not one of the video track's {media.declared} samples lies in the file")
    flags = np.zeros(len(media), dtype=np.uint8)
    cut = media.position + media.size > size_bytes
    if cut.any():
        missing = True
        flags[cut] |= int(SampleFlag.CORRUPT)
        media.size = np.minimum(media.size, size_bytes - media.position)
    total = int(media.size.sum())
    if total > _SHARED_FACTOR * size_bytes + _SHARED_BASE:
        raise CorruptVideo(f"samples of {total:,} bytes in all in a file of {size_bytes:,} bytes")
    return missing, flags


def _refuse_encrypted(track: Track, media: Media) -> None:
    """Where half of the samples or all keyframes are encrypted, there is nothing to look at."""
    count = int(media.encrypted.sum())
    if count and (2 * count >= len(media) or (media.key.any() and not (media.key & ~media.encrypted).any())):
        schemes = ", ".join(sorted({entry.scheme for entry in track.entries if entry.encrypted and entry.scheme}))
        raise Encrypted(f"{count} of {len(media)} samples are encrypted{f' ({schemes})' if schemes else ''}")


def _seconds(media: Media, timescale: int, notes: list[str]) -> tuple[npt.NDArray[np.float64], float]:
    """Presentation seconds on the media's clock, repaired where they cannot be; and the usual time to the next sample."""
    count = len(media)
    shown, clock = media.presentation, media.decoding
    step = 1 / DEFAULT_RATE
    if not media.duration.all():
        known = media.duration[media.duration > 0]
        step = float(np.median(known)) / timescale if len(known) else step
    offset = shown - clock
    moves = np.diff(clock)
    believable = (
        int(offset.max()) - int(offset.min()) <= FARTHEST_OFFSET * timescale
        and (count < 2 or (int(moves.min()) >= -timescale and int(moves.max()) <= FARTHEST_JUMP * timescale))
        and (count < 3 or (int(shown.max()) - int(shown.min())) * FASTEST >= (count - 1) * timescale)
    )
    # The first picture is zero in the end: what all times have in common would only cost precision as floats.
    origin = int(shown.min())
    if believable:
        return (shown - origin) / timescale, step
    known = media.duration[media.duration > 0]
    rate = timescale / float(np.median(known)) if len(known) else None
    timeline = repair((shown - origin) / timescale, (clock - origin) / timescale, rate)
    notes += timeline.notes
    return timeline.times, timeline.step


def _shown(
    edits: list[Edit], media: Media, seconds: npt.NDArray[np.float64], timescale: int, notes: list[str]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Presentation seconds as a player has them, and which samples it does not show."""
    times, outside = seconds, media.hidden
    if edits:
        which = first_edit(edits, media.presentation)
        outside = which < 0
        if len(edits) > 1:
            origin = int(media.presentation.min())
            starts = [replace(edit, start=edit.start - origin, end=edit.end - origin) for edit in edits]
            times = shown_times(starts, which, seconds, timescale)
    if hidden := int(outside.sum()):
        if hidden == len(media):
            raise CorruptVideo(f"the edit list leaves out all {hidden} samples")
        if not edits:  # those outside an edit list are flagged, and nothing is wrong with them
            notes.append(f"{hidden} of {len(media)} samples are overlaid by other fragments")
    return times, outside


def _aspect(movie: Movie, track: Track, entry: SampleEntry, notes: list[str]) -> Fraction:
    """Width over height of a pixel: as told, by a matrix that stretches, or by the size that the track is shown at."""
    aspect = entry.sample_aspect
    if aspect is None:
        matrix = combined(movie, track)
        if matrix != IDENTITY and track.width and track.height:
            wide, high = hypot(matrix[0], matrix[3]), hypot(matrix[1], matrix[4])
            if 1 < wide < 1 << 24 and 1 < high < 1 << 24 and abs(wide / high - 1) > 0.01:
                aspect = Fraction(wide / high).limit_denominator(1 << 31)
        wide_shown, high_shown = track.width >> 16, track.height >> 16
        if aspect is None and entry.width and entry.height and wide_shown and high_shown:
            aspect = Fraction(entry.height * wide_shown, entry.width * high_shown)
    if aspect is None:
        return Fraction(1)
    if not Fraction(1, _WIDEST_ASPECT) <= aspect <= _WIDEST_ASPECT:
        notes.append(f"sample aspect {aspect} absurd: taken for square")
        return Fraction(1)
    return aspect


def _config(entry: SampleEntry, aspect: Fraction) -> StreamConfig:
    usual = entry.facts.colour or Colour()
    colour = entry.colour or usual
    if colour.range is ColourRange.UNSPECIFIED:
        colour = replace(colour, range=usual.range)
    return StreamConfig(
        codec=entry.codec,
        width=entry.width,
        height=entry.height,
        bit_depth=entry.facts.bit_depth,
        chroma_format=entry.facts.chroma_format,
        profile=entry.facts.profile,
        extradata=entry.extradata,
        codec_tag=int.from_bytes(entry.kind, "little"),
        bits_per_coded_sample=entry.depth,
        sample_aspect=aspect,
        colour=colour,
    )


def _check_size(config: StreamConfig, limits: Mp4Limits) -> None:
    if config.width * config.height > limits.pixels:
        raise TooLarge.over("pixels", config.width * config.height, limits.pixels)
    if max(config.width, config.height) > limits.side:
        raise TooLarge.over("pixels on a side", max(config.width, config.height), limits.side)
