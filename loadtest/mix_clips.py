"""The clips that mixes name: `python -m loadtest.mix_clips [NAME …]` makes them beforehand.

They are kept in .cache/loadtest, so a machine without encoders or processor time can be given them as files. Broken ones are
made of sound ones, the same each time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from loadtest import clips

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache" / "loadtest"


def _pan(photograph: str, width: int, height: int, seconds: float, codec: str, *, container: str = "mp4") -> bytes:
    pictures = clips.pan(clips.photograph(photograph), round(seconds * 25), width, height)
    return clips.encode(pictures, keyframe_interval=25, codec=codec, container=container)


def _phone() -> bytes:
    from loadtest.gpu_clips import phone  # it imports the decoders' side as well

    return phone()


def _cut() -> bytes:
    """Ends in the middle of its pictures; in fragments, so that those before it can be seen."""
    pictures = clips.pan(clips.photograph("coffee"), 100, 640, 360)
    clip = clips.encode(pictures, keyframe_interval=10, muxing={"movflags": "frag_keyframe+empty_moov"})
    return clip[: len(clip) // 2]


def _overwritten() -> bytes:
    """One byte in 500 of the pictures is another one."""
    clip = bytearray(_pan("chelsea", 640, 360, 4, "libx264"))
    random = np.random.default_rng(1)
    begin = clip.index(b"mdat") + 64
    end = clip.index(b"moov", begin) - 8
    for place in random.integers(begin, end, (end - begin) // 500):
        clip[place] ^= int(random.integers(1, 256))
    return bytes(clip)


def _no_video() -> bytes:
    return clips.tone(3.0)


def _text() -> bytes:
    return b"This is no video at all. " * 400


MAKERS: Mapping[str, Callable[[], bytes]] = {
    "phone": _phone,
    "h264-360p": lambda: _pan("coffee", 640, 360, 6, "libx264"),
    "h264-720p": lambda: _pan("astronaut", 1280, 720, 8, "libx264"),
    "h264-1080p": lambda: _pan("rocket", 1920, 1080, 4, "libx264"),
    "hevc-720p": lambda: _pan("chelsea", 1280, 720, 4, "libx265"),
    "vp9-360p": lambda: _pan("coffee", 640, 360, 4, "libvpx-vp9", container="webm"),
    "av1-360p": lambda: _pan("astronaut", 640, 360, 4, "libsvtav1"),
    "mpeg4-288p": lambda: _pan("chelsea", 352, 288, 4, "mpeg4", container="avi"),
    "cut-short": _cut,
    "overwritten": _overwritten,
    "no-video": _no_video,
    "text": _text,
}


def clip(name: str, cache: Path = CACHE) -> bytes:
    """The clip's bytes, made and kept where they are not there yet. Raises `KeyError` for a name that is none."""
    maker = MAKERS[name]
    path = cache / name
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{name}.part")
        part.write_bytes(maker())
        part.rename(path)
    return path.read_bytes()


def main(names: Sequence[str]) -> int:
    """Makes the clips named, or all."""
    for name in names or MAKERS:
        if name not in MAKERS:
            print(f"error: there is no clip {name!r}; there are {', '.join(MAKERS)}", file=sys.stderr)
            return 1
        print(f"{CACHE.relative_to(ROOT) / name}: {len(clip(name)):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
