#!/usr/bin/env python3
"""Writes decoder_pool/nvdec/warm.py: a keyframe of flat grey in two sizes for each format that PyAV's encoders can make.

Usage: python scripts/make_warm_clips.py > decoder_pool/nvdec/warm.py
"""

import base64
import io
import textwrap

import av
import numpy as np

SIZES = ((256, 144), (144, 256))
FORMATS = (
    ("h264", 8, "420", "libx264", "yuv420p"),
    ("hevc", 8, "420", "libx265", "yuv420p"),
    ("hevc", 10, "420", "libx265", "yuv420p10le"),
    ("hevc", 12, "420", "libx265", "yuv420p12le"),
    ("hevc", 8, "444", "libx265", "yuv444p"),
    ("hevc", 10, "444", "libx265", "yuv444p10le"),
    ("vp8", 8, "420", "libvpx", "yuv420p"),
    ("vp9", 8, "420", "libvpx-vp9", "yuv420p"),
    ("av1", 8, "420", "libsvtav1", "yuv420p"),
    ("av1", 10, "420", "libsvtav1", "yuv420p10le"),
    ("mpeg1video", 8, "420", "mpeg1video", "yuv420p"),
    ("mpeg2video", 8, "420", "mpeg2video", "yuv420p"),
    ("mpeg4", 8, "420", "mpeg4", "yuv420p"),
)
#: With as many reference pictures as the codec allows: a decoder keeps the number of surfaces that it was made with.
OPTIONS = {
    "libx264": {"tune": "zerolatency", "bf": "0", "refs": "16"},
    "libx265": {"x265-params": "log-level=none:info=0:pools=1:bframes=0:ref=16"},
    "libsvtav1": {"preset": "12"},
}


def keyframe(encoder: str, pixels: str, width: int, height: int) -> bytes:
    """One keyframe as an elementary stream, without the encoder's own words."""
    with av.open(io.BytesIO(), "w", format="null") as output:
        stream = output.add_stream(encoder, rate=25, options=OPTIONS.get(encoder, {}))
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        frame = av.VideoFrame.from_ndarray(np.full((height, width, 3), 128, np.uint8), "rgb24").reformat(format=pixels)
        frame.pts = 0
        packets = [*stream.encode(frame), *stream.encode(None)]
        data = bytes(packets[0])
        head = bytes(stream.codec_context.extradata or b"") if encoder == "mpeg4" else b""
    if encoder == "libx264":
        units = data.replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1")[1:]
        data = b"".join(b"\0\0\0\1" + unit for unit in units if unit[0] & 31 != 6)
    return data if data.startswith(head) else head + data


def main() -> None:
    """Prints the module."""
    print('"""Tiny clips that a hardware decoder is warmed up with: one keyframe of flat grey, in two sizes.\n')
    print('Made by `scripts/make_warm_clips.py`.\n"""\n\nfrom __future__ import annotations\n\nimport base64\n')
    print("#: Elementary streams in base64 by codec, bit depth, chroma format, width and height.")
    print("_CLIPS: dict[tuple[str, int, str], tuple[tuple[int, int, str], ...]] = {")
    for codec, depth, chroma, encoder, pixels in FORMATS:
        print(f'    ("{codec}", {depth}, "{chroma}"): (')
        for width, height in SIZES:
            text = base64.b64encode(keyframe(encoder, pixels, width, height)).decode()
            lines = textwrap.wrap(text, 110)
            print(f"        (\n            {width},\n            {height},")
            if len(lines) == 1:
                print(f'            "{lines[0]}",\n        ),')
            else:
                print("\n".join(f'            "{line}"' for line in lines) + ",\n        ),")
        print("    ),")
    print("}\n\n")
    print("def warm_clips(codec: str, bit_depth: int, chroma_format: str) -> list[tuple[bytes, int, int]]:")
    print('    """(elementary stream, width, height) of each clip for the format; none where there is no such clip."""')
    print("    clips = _CLIPS.get((codec, bit_depth, chroma_format), ())")
    print("    return [(base64.b64decode(text), width, height) for width, height, text in clips]")


if __name__ == "__main__":
    main()
