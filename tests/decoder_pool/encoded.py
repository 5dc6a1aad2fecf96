"""Small clips of any codec, made by PyAV's encoders, with what FFmpeg's plain decoding gives for them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import av
import numpy as np

from decoder_pool.decoder import DecodeUnit, Packet
from decoder_pool.shared_bytes import SharedBytes
from keyglance.video import StreamConfig


def scene(number: int, width: int, height: int) -> np.ndarray:
    """A picture with edges, a gradient and some noise, moved by its number: (height, width, 3) uint8 RGB."""
    rng = np.random.default_rng(7)
    blocks = rng.integers(0, 255, (height // 8 + 1, width // 8 + 1, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    y, x = np.mgrid[:height, :width]
    wave = (np.sin((x + 5 * number) / 17) + np.cos((y - 3 * number) / 11)) * 40 + 60
    noise = np.random.default_rng(number).integers(0, 12, (height, width, 3))
    return np.clip(blocks[:height, :width] // 2 + wave[..., None] + noise, 0, 255).astype(np.uint8)


@dataclass
class Clip:
    """`pictures` are the planes by sample number, as PyAV decodes the whole; None where the packet shows none."""

    config: StreamConfig
    payloads: list[bytes]
    keys: list[bool]
    pictures: dict[int, list[np.ndarray]]

    def packed(self, payloads: list[bytes] | None = None) -> tuple[SharedBytes, list[Packet]]:
        payloads = payloads or self.payloads
        offsets = np.cumsum([0, *map(len, payloads)])
        packets = [Packet(n, int(offsets[n]), len(p), self.keys[n]) for n, p in enumerate(payloads)]
        return SharedBytes.of(payloads), packets

    def alone(self, packets: list[Packet], sample: int, spare: int = 0) -> DecodeUnit:
        return DecodeUnit(tuple(packets[sample : sample + 1 + spare]), (sample,), min(spare, len(packets) - sample - 1))


def frame_planes(frame: av.VideoFrame) -> list[np.ndarray]:
    """The planes of a planar frame, without row padding."""
    kind = np.uint8 if frame.format.components[0].bits == 8 else np.uint16
    planes = []
    for plane in frame.planes:
        rows = np.frombuffer(memoryview(plane), kind).reshape(-1, plane.line_size // kind().itemsize)
        planes.append(rows[: plane.height, : plane.width].copy())
    return planes


def encode(
    codec: str,
    pix_fmt: str = "yuv420p",
    size: tuple[int, int] = (96, 64),
    count: int = 6,
    gop: int = 1,
    options: Mapping[str, str] | None = None,
    container: str = "matroska",
    reference: str | None = None,
    **config: Any,
) -> Clip:
    """Encodes `count` scenes; `reference` is the pixel format of `pictures` where it is not `pix_fmt`."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=25)
        stream.width, stream.height = size
        stream.pix_fmt = pix_fmt
        stream.options = dict(options or {})
        stream.codec_context.gop_size = gop
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(scene(number, *size), format="rgb24")
            output.mux(stream.encode(frame.reformat(format=pix_fmt)))
        output.mux(stream.encode())
    return read(file.getvalue(), reference, **config)


def read(data: bytes, reference: str | None = None, **config: Any) -> Clip:
    """Walks and decodes a file with one video stream."""
    with av.open(io.BytesIO(data)) as source:
        stream = source.streams.video[0]
        context = stream.codec_context
        tag = context.codec_tag
        known = {
            "codec": context.codec.canonical_name,
            "width": context.width,
            "height": context.height,
            "extradata": context.extradata or b"",
            "codec_tag": int.from_bytes(tag.encode("latin-1"), "little") if isinstance(tag, str) else tag,
            "bits_per_coded_sample": context.bits_per_coded_sample,
        }
        context.thread_count = 1
        payloads, keys, pictures = [], [], {}
        for packet in source.demux(stream):
            if packet.size:
                packet.pts, packet.dts = len(payloads), None
                payloads.append(bytes(packet))
                keys.append(packet.is_keyframe)
            for frame in context.decode(packet if packet.size else None):
                pictures[frame.pts] = frame_planes(frame.reformat(format=reference) if reference else frame)
    return Clip(StreamConfig(**(known | config)), payloads, keys, pictures)
