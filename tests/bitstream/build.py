"""Headers made by hand: a bit writer, and what it writes for each codec, field by field as the standards list them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


class BitWriter:
    """Bits, most significant first."""

    def __init__(self) -> None:
        self._bits: list[str] = []

    def u(self, count: int, value: int) -> BitWriter:
        assert 0 <= value < 1 << count or count == 0, (count, value)
        if count:
            self._bits.append(format(value, f"0{count}b"))
        return self

    def flag(self, value: bool) -> BitWriter:
        return self.u(1, int(value))

    def ue(self, value: int) -> BitWriter:
        digits = format(value + 1, "b")
        self._bits.append("0" * (len(digits) - 1) + digits)
        return self

    def se(self, value: int) -> BitWriter:
        return self.ue(2 * value - 1 if value > 0 else -2 * value)

    def fields(self, text: str, *values: int) -> BitWriter:
        """Several at once: `fields("u8 ue 1", 66, 5, 1)`; a number alone is u(n)."""
        for kind, value in zip(text.split(), values, strict=True):
            if kind in ("ue", "se"):
                getattr(self, kind)(value)
            else:
                self.u(int(kind.removeprefix("u")), value)
        return self

    def data(self, *, stop: bool = True) -> bytes:
        """The bytes, padded: with `stop` by a one and zeros (rbsp_trailing_bits), else by zeros."""
        bits = "".join(self._bits) + ("1" if stop else "")
        bits += "0" * (-len(bits) % 8)
        return int(bits or "0", 2).to_bytes(len(bits) // 8, "big")


def escape(data: bytes) -> bytes:
    """With emulation prevention bytes, byte by byte as the standard says it (H.264, 7.4.1.1)."""
    out, zeros = bytearray(), 0
    for byte in data:
        if zeros == 2 and byte <= 3:
            out.append(3)
            zeros = 0
        out.append(byte)
        zeros = zeros + 1 if byte == 0 else 0
    return bytes(out)


def annexb(*units: bytes) -> bytes:
    return b"".join(b"\0\0\0\1" + unit for unit in units)


def prefixed(*units: bytes, size: int = 4) -> bytes:
    return b"".join(len(unit).to_bytes(size, "big") + unit for unit in units)


@dataclass
class Vui:
    """Video usability information up to the chroma location; None leaves a part out."""

    aspect: int | tuple[int, int] | None = None
    overscan: bool = False
    full: bool | None = None
    codes: tuple[int, int, int] | None = None
    chroma_location: int | None = None

    def write(self, bits: BitWriter) -> None:
        bits.flag(self.aspect is not None)
        if isinstance(self.aspect, tuple):
            bits.fields("8 16 16", 255, *self.aspect)
        elif self.aspect is not None:
            bits.u(8, self.aspect)
        bits.flag(self.overscan)
        if self.overscan:
            bits.u(1, 0)
        bits.flag(self.full is not None)
        if self.full is not None:
            bits.fields("3 1 1", 5, int(self.full), int(self.codes is not None))
            for code in self.codes or ():
                bits.u(8, code)
        bits.flag(self.chroma_location is not None)
        if self.chroma_location is not None:
            bits.ue(self.chroma_location).ue(self.chroma_location)


WITH_FORMAT = (100, 110, 122, 244, 44, 83, 86, 118, 128)


@dataclass
class H264Sps:
    profile: int = 100
    constraints: int = 0
    number: int = 0
    chroma: int = 1
    separate: bool = False
    depth: int = 8
    scaling: int = 0  # 0 none, 1 present but empty, 2 lists
    frame_number_bits: int = 4
    order: int = 0
    width: int = 2  # macroblocks
    height: int = 2  # map units
    frames_only: bool = True
    adaptive: bool = False
    crop: tuple[int, int, int, int] | None = None
    vui: Vui | None = None

    def unit(self) -> bytes:
        bits = BitWriter().fields("8 8 8 ue", self.profile, self.constraints, 30, self.number)
        if self.profile in WITH_FORMAT:
            bits.ue(self.chroma)
            if self.chroma == 3:
                bits.flag(self.separate)
            bits.fields("ue ue 1 1", self.depth - 8, self.depth - 8, 0, int(self.scaling > 0))
            if self.scaling:
                for index in range(8 if self.chroma != 3 else 12):
                    bits.flag(self.scaling == 2 and index % 2 == 0)
                    if self.scaling == 2 and index % 2 == 0:
                        if index % 4 == 0:
                            bits.se(-8)  # the default list
                        else:
                            for _ in range(16 if index < 6 else 64):
                                bits.se(1)
        bits.ue(self.frame_number_bits - 4).ue(self.order)
        if self.order == 0:
            bits.ue(2)
        elif self.order == 1:
            bits.fields("1 se se ue se se", 0, -1, 1, 2, 5, -5)
        bits.fields("ue 1 ue ue 1", 1, 0, self.width - 1, self.height - 1, int(self.frames_only))
        if not self.frames_only:
            bits.flag(self.adaptive)
        bits.u(1, 1).flag(self.crop is not None)
        for side in self.crop or ():
            bits.ue(side)
        bits.flag(self.vui is not None)
        if self.vui is not None:
            self.vui.write(bits)
            bits.fields("1 1 1 1 1", 0, 0, 0, 0, 0)
        return escape(b"\x67" + bits.data())


def h264_pps(number: int = 0, sps: int = 0) -> bytes:
    return escape(b"\x68" + BitWriter().fields("ue ue 1 1 ue", number, sps, 1, 0, 0).data())


def h264_slice(
    kind: int,
    *,
    idr: bool = False,
    pps: int = 0,
    sps: H264Sps | None = None,
    bottom: bool | None = None,
    first: int = 0,
    nal: int = 0,
) -> bytes:
    """A slice; `kind` is slice_type, `bottom` a field's parity (None: a frame)."""
    bits = BitWriter().fields("ue ue ue", first, kind, pps)
    sps = sps or H264Sps()
    if sps.separate:
        bits.u(2, 0)
    bits.u(sps.frame_number_bits, 1)
    if not sps.frames_only:
        bits.flag(bottom is not None)
        if bottom is not None:
            bits.flag(bottom)
    return escape(bytes([0x60 | (nal or (5 if idr else 1))]) + bits.data() + bytes(range(0x40, 0x80)))


def sei(*messages: tuple[int, bytes], header: bytes = b"\x06") -> bytes:
    out = header
    for kind, payload in messages:
        for number in (kind, len(payload)):
            out += b"\xff" * (number // 255) + bytes([number % 255])
        out += payload
    return escape(out + b"\x80")


RECOVERY = (6, b"\x84")


def avcc(*units: bytes, size: int = 4, extension: tuple[int, int] | None = None) -> bytes:
    """`extension`: chroma_format and bit depth."""
    sps = [unit for unit in units if unit[0] & 31 == 7]
    pps = [unit for unit in units if unit[0] & 31 == 8]
    out = (
        bytes([1]) + (sps[0][1:4] if sps else b"\x42\0\x1e") + bytes([0xFC | size - 1, 0xE0 | len(sps)]) + prefixed(*sps, size=2)
    )
    out += bytes([len(pps)]) + prefixed(*pps, size=2)
    if extension is not None:
        out += bytes([0xFC | extension[0], 0xF8 | extension[1] - 8, 0xF8 | extension[1] - 8, 0])
    return out


@dataclass
class HevcSps:
    profile: int = 1
    compatible: int = 0
    progressive: bool = True
    interlaced: bool = False
    sub_layers: int = 0
    number: int = 0
    chroma: int = 1
    separate: bool = False
    width: int = 64
    height: int = 64
    window: tuple[int, int, int, int] | None = None
    depth: int = 8
    smallest: int = 3  # log2 of the minimum coding block
    scaling: int = 0  # 0 off, 1 default, 2 lists
    pcm: bool = False
    sets: list[tuple[int, int] | list[tuple[bool, bool]]] = field(default_factory=list)  # (negative, positive), or predicted
    long_term: int = 0
    vui: Vui | None = None
    fields: bool = False

    def unit(self) -> bytes:
        bits = BitWriter().fields("4 3 1", 0, self.sub_layers, 1)
        bits.fields("2 1 5 32", 0, 0, self.profile, self.compatible)
        bits.fields("1 1 1 1 43 1 8", int(self.progressive), int(self.interlaced), 0, 1, 0, 0, 93)
        if self.sub_layers:
            for index in range(8):
                bits.fields("1 1", *((1, 1) if index < self.sub_layers else (0, 0)))
            for _ in range(self.sub_layers):
                bits.u(88, 0).u(8, 90)
        bits.ue(self.number).ue(self.chroma)
        if self.chroma == 3:
            bits.flag(self.separate)
        bits.ue(self.width).ue(self.height).flag(self.window is not None)
        for side in self.window or ():
            bits.ue(side)
        bits.fields("ue ue ue 1", self.depth - 8, self.depth - 8, 4, 1)
        for _ in range(self.sub_layers + 1):
            bits.fields("ue ue ue", 1, 0, 0)
        bits.fields("ue ue ue ue ue ue", self.smallest - 3, 1, 0, 3, 0, 0)
        bits.flag(self.scaling > 0)
        if self.scaling:
            bits.flag(self.scaling == 2)
        if self.scaling == 2:
            for size in range(4):
                for matrix in range(2 if size == 3 else 6):
                    bits.flag(matrix == 0)
                    if matrix:
                        bits.ue(1)
                    else:
                        for _ in range(min(64, 16 << 2 * size) + (size > 1)):
                            bits.se(-3)
        bits.fields("1 1 1", 1, 1, int(self.pcm))
        if self.pcm:
            bits.fields("4 4 ue ue 1", 7, 7, 0, 0, 0)
        bits.ue(len(self.sets))
        for index, each in enumerate(self.sets):
            if index:
                bits.flag(isinstance(each, list))
            if isinstance(each, list):
                bits.fields("1 ue", 0, 0)
                for used, delta in each:
                    bits.flag(used)
                    if not used:
                        bits.flag(delta)
            else:
                bits.ue(each[0]).ue(each[1])
                for _ in range(sum(each)):
                    bits.fields("ue 1", 0, 1)
        bits.flag(self.long_term > 0)
        if self.long_term:
            bits.ue(self.long_term)
            for _ in range(self.long_term):
                bits.u(8, 3).u(1, 0)
        bits.fields("1 1 1", 1, 1, int(self.vui is not None))
        if self.vui is not None:
            self.vui.write(bits)
            bits.fields("1 1 1 1 1 1", 0, int(self.fields), 0, 0, 0, 0)
        bits.u(1, 0)
        return escape(b"\x42\x01" + bits.data())


def hevc_pps(number: int = 0, sps: int = 0, *, dependent: bool = False, extra: int = 0) -> bytes:
    return escape(b"\x44\x01" + BitWriter().fields("ue ue 1 1 3 1 1", number, sps, int(dependent), 0, extra, 0, 0).data())


def hevc_slice(
    nal: int,
    kind: int = 2,
    *,
    pps: int = 0,
    first: bool = True,
    address_bits: int = 4,
    extra: int = 0,
    dependent: bool | None = None,
) -> bytes:
    """A slice segment; `dependent` None where the picture parameter set knows no such."""
    bits = BitWriter().flag(first)
    if 16 <= nal <= 23:
        bits.u(1, 0)
    bits.ue(pps)
    if not first:
        if dependent is not None:
            bits.flag(dependent)
        bits.u(address_bits, 1)
    if not dependent:
        bits.u(extra, 0).ue(kind)
    return escape(bytes([nal << 1, 1]) + bits.data() + bytes(range(0x40, 0x60)))


def hvcc(*units: bytes, size: int = 4, chroma: int = 1, depth: int = 8) -> bytes:
    head = bytes([1, 1]) + bytes(14) + bytes([0xFC | chroma, 0xF8 | depth - 8, 0xF8 | depth - 8, 0, 0, 0xC | size - 1])
    return head + bytes([len(units)]) + b"".join(bytes([unit[0] >> 1, 0, 1]) + prefixed(unit, size=2) for unit in units)


def vp8_frame(width: int = 176, height: int = 144, *, key: bool = True, shown: bool = True, scale: int = 0) -> bytes:
    tag = (not key) | shown << 4 | 100 << 5
    head = tag.to_bytes(3, "little")
    return head + (b"\x9d\x01\x2a" + struct.pack("<HH", width | scale << 14, height | scale << 14) if key else b"") + bytes(16)


def vp9_frame(
    kind: str = "key",
    *,
    profile: int = 0,
    shown: bool = True,
    resilient: bool = False,
    twelve: bool = False,
    space: int = 2,
    full: bool = False,
    sub: tuple[int, int] = (1, 1),
    width: int = 352,
    height: int = 288,
    reference: int | None = None,
) -> bytes:
    """`kind`: key, intra, inter or existing. An inter frame takes the size of its `reference` (0 to 2), None: its own."""
    bits = BitWriter().fields("2 1 1", 2, profile & 1, profile >> 1)
    if profile == 3:
        bits.u(1, 0)
    bits.flag(kind == "existing")
    if kind == "existing":
        return bits.u(3, 1).data(stop=False)
    bits.fields("1 1 1", int(kind != "key"), int(shown), int(resilient))
    if kind != "key":
        if not shown:
            bits.flag(kind == "intra")
        if not resilient:
            bits.u(2, 0)
        if kind != "intra":
            bits.fields("8 12", 1, 0)
            for number in range(3 if reference is None else reference + 1):
                bits.flag(number == reference)
            if reference is None:
                bits.fields("16 16", width - 1, height - 1)
            return bits.data() + bytes(8)
    bits.u(24, 0x498342)
    if kind == "key" or profile:
        if profile >= 2:
            bits.flag(twelve)
        bits.u(3, space)
        if space != 7:
            bits.flag(full)
            if profile & 1:
                bits.fields("1 1 1", *sub, 0)
        elif profile & 1:
            bits.u(1, 0)
    if kind != "key":
        bits.u(8, 1)
    bits.fields("16 16 1", width - 1, height - 1, 0)
    return bits.data() + bytes(8)


def vp9_superframe(*frames: bytes, size: int = 2) -> bytes:
    marker = bytes([0xC0 | (size - 1) << 3 | len(frames) - 1])
    return b"".join(frames) + marker + b"".join(len(frame).to_bytes(size, "little") for frame in frames) + marker


@dataclass
class Av1Sequence:
    profile: int = 0
    reduced: bool = False
    timing: bool = False
    equal: bool = False
    model: bool = False
    delay: bool = False
    points: int = 1
    idc: int = 0
    level: int = 8
    width: int = 640
    height: int = 360
    ids: bool = False
    order_bits: int = 7  # 0: no order hints
    screen: int = 2
    motion: int = 2
    super_resolution: bool = False
    depth: int = 8
    mono: bool = False
    codes: tuple[int, int, int] | None = None
    full: bool = False
    sub: tuple[int, int] = (1, 1)
    location: int = 0

    def data(self) -> bytes:
        bits = BitWriter().fields("3 1 1", self.profile, int(self.reduced), int(self.reduced))
        if self.reduced:
            bits.u(5, 8)
        else:
            bits.flag(self.timing)
            if self.timing:
                bits.fields("32 32 1", 1, 25, int(self.equal))
                if self.equal:
                    bits.ue(2)  # uvlc is written as ue(v) is
                bits.flag(self.model)
                if self.model:
                    bits.fields("5 32 5 5", 9, 1, 9, 9)
            bits.flag(self.delay).u(5, self.points - 1)
            for _ in range(self.points):
                bits.u(12, self.idc).u(5, self.level)
                if self.level > 7:
                    bits.u(1, 0)
                if self.timing and self.model:
                    bits.fields("1 10 10 1", 1, 5, 5, 0)
                if self.delay:
                    bits.fields("1 4", 1, 3)
        bits.fields("4 4 16 16", 15, 15, self.width - 1, self.height - 1)
        if not self.reduced:
            bits.flag(self.ids)
            if self.ids:
                bits.fields("4 3", 5, 2)
        bits.u(3, 0)
        if not self.reduced:
            bits.u(4, 0).flag(self.order_bits > 0)
            if self.order_bits:
                bits.u(2, 0)
            bits.flag(self.screen == 2)
            if self.screen != 2:
                bits.u(1, self.screen)
            if self.screen:
                bits.flag(self.motion == 2)
                if self.motion != 2:
                    bits.u(1, self.motion)
            if self.order_bits:
                bits.u(3, self.order_bits - 1)
        bits.flag(self.super_resolution).u(2, 0)
        bits.flag(self.depth > 8)
        if self.profile == 2 and self.depth > 8:
            bits.flag(self.depth == 12)
        if self.profile != 1:
            bits.flag(self.mono)
        bits.flag(self.codes is not None)
        for code in self.codes or ():
            bits.u(8, code)
        if self.mono:
            bits.flag(self.full)
        elif self.codes != (1, 13, 0):
            bits.flag(self.full)
            if self.profile == 2 and self.depth == 12:
                bits.u(1, self.sub[0])
                if self.sub[0]:
                    bits.u(1, self.sub[1])
            implied = {0: (1, 1), 1: (0, 0), 2: (1, 0)}[self.profile]
            if (self.sub if self.profile == 2 and self.depth == 12 else implied) == (1, 1):
                bits.u(2, self.location)
        return bits.fields("1 1", 0, 0).data()


def av1_frame(
    sequence: Av1Sequence,
    kind: int | None = 0,
    *,
    shown: bool = True,
    resilient: bool = False,
    screen: bool = False,
    size: tuple[int, int] | None = None,
    removal: bool = False,
    refresh: int = 1,
    shrunk: bool = False,
    render: tuple[int, int] | None = None,
) -> bytes:
    """uncompressed_header up to the render size; `kind` is frame_type, None shows an existing frame."""
    bits = BitWriter()
    if not sequence.reduced:
        bits.flag(kind is None)
        if kind is None:
            return bits.u(3, 1).data()
        bits.u(2, kind).flag(shown)
        if shown and sequence.timing and sequence.model and not sequence.equal:
            bits.u(10, 7)
        if not shown:
            bits.u(1, 1)
        if not (kind == 0 and shown):
            bits.flag(resilient)
    if kind not in (0, 2):
        return bits.u(16, 0).data()
    start = kind == 0 and shown
    bits.u(1, 0)
    allowed = bool(sequence.screen)
    if sequence.screen == 2:
        bits.flag(screen)
        allowed = screen
    if allowed and (sequence.motion == 2):
        bits.u(1, 0)
    if sequence.ids:
        bits.u(7 + 3, 5)
    if not sequence.reduced:
        bits.flag(size is not None)
        bits.u(sequence.order_bits, 0)
    if sequence.timing and sequence.model:
        bits.flag(removal)
        if removal:
            for _ in range(sequence.points):
                bits.u(10, 3)
    if not start:
        bits.u(8, refresh)
        if refresh != 0xFF and resilient and sequence.order_bits:
            bits.u(8 * sequence.order_bits, 0)
    if size is not None:
        bits.fields("16 16", size[0] - 1, size[1] - 1)
    if sequence.super_resolution:
        bits.flag(shrunk)
        if shrunk:
            bits.u(3, 1)
    bits.flag(render is not None)
    if render is not None:
        bits.fields("16 16", render[0] - 1, render[1] - 1)
    return bits.data()


def obu(kind: int, data: bytes, *, sized: bool = True, layer: int | None = None) -> bytes:
    head = bytes([kind << 3 | (layer is not None) << 2 | sized << 1])
    if layer is not None:
        head += bytes([layer])
    if sized:
        size = len(data)
        while size >= 0x80:
            head += bytes([size & 0x7F | 0x80])
            size >>= 7
        head += bytes([size])
    return head + data


def av1c(sequence: bytes = b"", *, profile: int = 0, flags: int = 0x0C) -> bytes:
    return bytes([0x81, profile << 5, flags, 0]) + sequence


def mpeg4_object(
    *, version: int | None = None, signal: tuple[bool, tuple[int, int, int] | None] | None = None, kind: int = 1
) -> bytes:
    bits = BitWriter().flag(version is not None)
    if version is not None:
        bits.fields("4 3", version, 1)
    bits.u(4, kind)
    if kind == 1:
        bits.flag(signal is not None)
    if signal is not None:
        bits.fields("3 1 1", 5, int(signal[0]), int(signal[1] is not None))
        for code in signal[1] or ():
            bits.u(8, code)
    return b"\0\0\1\xb5" + bits.data()


def mpeg4_layer(width: int = 176, height: int = 144, **changes: Any) -> bytes:
    """A video object layer."""
    told: dict[str, Any] = {
        "version": None, "aspect": 1, "pixels": (0, 0), "control": False, "low_delay": True, "buffer": False, "shape": 0,
        "resolution": 25, "fixed": False, "interlaced": False, "sprite": 0, "depth": None,
    }  # fmt: skip
    told |= changes
    bits = BitWriter().u(1, 0).u(8, 1).flag(told["version"] is not None)
    if told["version"] is not None:
        bits.fields("4 3", told["version"], 1)
    bits.u(4, told["aspect"])
    if told["aspect"] == 15:
        bits.fields("8 8", *told["pixels"])
    bits.flag(told["control"])
    if told["control"]:
        bits.fields("2 1 1", 1, int(told["low_delay"]), int(told["buffer"]))
        if told["buffer"]:
            bits.u(79, 0)
    bits.u(2, told["shape"])
    if told["shape"] == 3 and told["version"] not in (None, 1):
        bits.u(4, 0)
    bits.fields("1 16 1 1", 1, told["resolution"], 1, int(told["fixed"]))
    if told["fixed"]:
        bits.u(max(1, (told["resolution"] - 1).bit_length()), 1)
    if told["shape"] == 0:
        bits.fields("1 13 1 13 1", 1, width, 1, height, 1)
    bits.fields("1 1", int(told["interlaced"]), 1)
    bits.u(1 if told["version"] in (None, 1) else 2, told["sprite"])
    if told["sprite"] == 1:
        bits.u(56, 0)
    if told["sprite"]:
        bits.u(9 + (told["sprite"] == 1), 0)
    bits.flag(told["depth"] is not None)
    if told["depth"] is not None:
        bits.fields("4 4", 5, told["depth"])
    return b"\0\0\1\x20" + bits.u(16, 0xAAAA).data()


def mpeg4_plane(kind: int) -> bytes:
    return b"\0\0\1\xb6" + bytes([kind << 6 | 0x10, 0x55, 0x55])


def mpeg4_group(closed: bool) -> bytes:
    return b"\0\0\1\xb3" + BitWriter().fields("18 1 1", 1 << 6, int(closed), 0).data()


def mpeg2_sequence(width: int = 352, height: int = 288, *, aspect: int = 1) -> bytes:
    return (
        b"\0\0\1\xb3"
        + BitWriter().fields("12 12 4 4 18 1 10 1 1 1", width & 0xFFF, height & 0xFFF, aspect, 3, 9, 1, 9, 0, 0, 0).data()
    )


def mpeg2_extension(
    *, profile: int = 4, progressive: bool = True, chroma: int = 1, more: tuple[int, int] = (0, 0), low_delay: bool = False
) -> bytes:
    fields = "4 1 3 4 1 2 2 2 12 1 8 1 2 5"
    values = (1, 0, profile, 8, int(progressive), chroma, *more, 0, 1, 0, int(low_delay), 0, 0)
    return b"\0\0\1\xb5" + BitWriter().fields(fields, *values).data(stop=False)


def mpeg2_display(width: int, height: int, codes: tuple[int, int, int] | None = None) -> bytes:
    bits = BitWriter().fields("4 3 1", 2, 5, int(codes is not None))
    for code in codes or ():
        bits.u(8, code)
    return b"\0\0\1\xb5" + bits.fields("14 1 14", width, 1, height).data()


def mpeg2_group(closed: bool) -> bytes:
    return b"\0\0\1\xb8" + BitWriter().fields("25 1 1", 1 << 12, int(closed), 0).data()


def mpeg2_picture(kind: int) -> bytes:
    return b"\0\0\1\0" + BitWriter().fields("10 3 16", 1, kind, 0xFFFF).data()


def mpeg2_coding(*, structure: int = 3, progressive: bool = True) -> bytes:
    fields = "4 16 2 2 1 1 1 1 1 1 1 1 1 1"
    return b"\0\0\1\xb5" + BitWriter().fields(fields, 8, 0xFFFF, 0, structure, 1, 0, 0, 0, 0, 0, 0, 1, int(progressive), 0).data()


MPEG2_SLICE = b"\0\0\1\x01" + b"\x55" * 8


def esds(info: bytes, *, flags: int = 0, extra: Iterable[int] = ()) -> bytes:
    """An esds box's payload with version and flags."""

    def descriptor(tag: int, data: bytes) -> bytes:
        return bytes([tag, 0x80, 0x80, 0x80 | len(data) >> 7, len(data) & 0x7F]) + data

    config = bytes([0x20, 0x11]) + bytes(11) + descriptor(5, info)
    return bytes(4) + descriptor(3, b"\0\1" + bytes([flags, *extra]) + descriptor(4, config) + descriptor(6, b"\2"))
