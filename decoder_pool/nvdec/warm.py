"""Tiny clips that a hardware decoder is warmed up with: one keyframe of flat grey, in two sizes.

Made by `scripts/make_warm_clips.py`.
"""

from __future__ import annotations

import base64

#: Elementary streams in base64 by codec, bit depth, chroma format, width and height.
_CLIPS: dict[tuple[str, int, str], tuple[tuple[int, int, str], ...]] = {
    ("h264", 8, "420"): (
        (
            256,
            144,
            "AAAAAWdkAAyssgICdCAAAAMAIAAABlHihUkAAAABaOvDyyLAAAAAAWWIhASv/vet34E2gVrulc4tMurlDQ9UfaUpni3DWO+IKLX+cK94f0AAAA"
            "XoBvY1AAAAAWUCiIhASv/+963fgTaBWu6Vzi0y6uUND1R9pSmeLcNY74gotf5wr3h/QAAABegNyQ==",
        ),
        (
            144,
            256,
            "AAAAAWdkAAyssgSENCAAAAMAIAAABlHihUkAAAABaOvDyyLAAAAAAWWIhASv/vet34E2gVrulc4tMurlDQ9UqxR/u0ewpszuasaIvHqAAXQC8K"
            "plSQAAAAFlAkiIQEr//vet34E2gVrulc4tMurlDQ9UqxR/u0ewpszuasaIvHqAAXQC8KplSQ==",
        ),
    ),
    ("hevc", 8, "420"): (
        (
            256,
            144,
            "AAAAAUABDAH//wFgAAADAJAAAAMAAAMAPJKAkAAAAAFCAQEBYAAAAwCQAAADAAADADygCAgJFlkqSTK5oCAAAAMAIAAAAwMhAAAAAUQBwXK0Yk"
            "AAAAEoAa8dZMeA9wFb1r7HAB/RMpQlYKlxygUYgVNAkxA06AoI",
        ),
        (
            144,
            256,
            "AAAAAUABDAH//wFgAAADAJAAAAMAAAMAPJKAkAAAAAFCAQEBYAAAAwCQAAADAAADADygEiAQFlkqSTK5oCAAAAMAIAAAAwMhAAAAAUQBwXK0Yk"
            "AAAAEoAa8dISlS9wFb1r7HAB/W6PSpccoFGRWTDZQlnIcAANqA",
        ),
    ),
    ("hevc", 10, "420"): (
        (
            256,
            144,
            "AAAAAUABDAH//wIgAAADAJAAAAMAAAMAPJKAkAAAAAFCAQECIAAAAwCQAAADAAADADygCAgJE2WSpJMrmgIAAAMAAgAAAwAyEAAAAAFEAcFytG"
            "JAAAABKAGvHWTHgPcBW9a+xwAf0TKUJWCpccoFGIFTQJMQNOgKCA==",
        ),
        (
            144,
            256,
            "AAAAAUABDAH//wIgAAADAJAAAAMAAAMAPJKAkAAAAAFCAQECIAAAAwCQAAADAAADADygEiAQE2WSpJMrmgIAAAMAAgAAAwAyEAAAAAFEAcFytG"
            "JAAAABKAGvHSEpUvcBW9a+xwAf1uj0qXHKBRkVkw2UJZyHAADagA==",
        ),
    ),
    ("hevc", 12, "420"): (
        (
            256,
            144,
            "AAAAAUABDAH//wQIAAADAJmIAAADAAA8koCQAAAAAUIBAQQIAAADAJmIAAADAAA8oAgICRFKWSpJMrmgIAAAAwAgAAADAyEAAAABRAHBcrRiQA"
            "AAASgBrx1kx4D3AVvWvscAH9EylCVgqXHKBRiBU0CTEDToCgg=",
        ),
        (
            144,
            256,
            "AAAAAUABDAH//wQIAAADAJmIAAADAAA8koCQAAAAAUIBAQQIAAADAJmIAAADAAA8oBIgEBFKWSpJMrmgIAAAAwAgAAADAyEAAAABRAHBcrRiQA"
            "AAASgBrx0hKVL3AVvWvscAH9bo9KlxygUZFZMNlCWchwAA2oA=",
        ),
    ),
    ("hevc", 8, "444"): (
        (
            256,
            144,
            "AAAAAUABDAH//wQIAAADAJ4IAAADAAA8koCQAAAAAUIBAQQIAAADAJ4IAAADAAA8kAEBASLLJUkmVzQEAAADAAQAAAMAZCAAAAABRAHBcoYMRi"
            "QAAAEoAa8dZMeA9wFb1r7HAB/RMpQlYKlxygUYgVNAkxA06AoI",
        ),
        (
            144,
            256,
            "AAAAAUABDAH//wQIAAADAJ4IAAADAAA8koCQAAAAAUIBAQQIAAADAJ4IAAADAAA8kAJEAgLLJUkmVzQEAAADAAQAAAMAZCAAAAABRAHBcoYMRi"
            "QAAAEoAa8dISlS9wFb1r7HAB/W6PSpccoFGRWTDZQlnIcAANqA",
        ),
    ),
    ("hevc", 10, "444"): (
        (
            256,
            144,
            "AAAAAUABDAH//wQIAAADAJwIAAADAAA8koCQAAAAAUIBAQQIAAADAJwIAAADAAA8kAEBASJsslSSZXNAQAAAAwBAAAAGQgAAAAFEAcFyhgxGJA"
            "AAASgBrx1kx4D3AVvWvscAH9EylCVgqXHKBRiBU0CTEDToCgg=",
        ),
        (
            144,
            256,
            "AAAAAUABDAH//wQIAAADAJwIAAADAAA8koCQAAAAAUIBAQQIAAADAJwIAAADAAA8kAJEAgJsslSSZXNAQAAAAwBAAAAGQgAAAAFEAcFyhgxGJA"
            "AAASgBrx0hKVL3AVvWvscAH9bo9KlxygUZFZMNlCWchwAA2oA=",
        ),
    ),
    ("vp8", 8, "420"): (
        (
            256,
            144,
            "0AkAnQEqAAGQAABHCIWFiIWEiAICAAYWBh17c2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2"
            "TnD2TZAP5oAA==",
        ),
        (
            144,
            256,
            "0AkAnQEqkAAAAQBHCIWFiIWEiAICAAYWBh17c2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2TnD2"
            "TnD2TZAP5oAA==",
        ),
    ),
    ("vp9", 8, "420"): (
        (
            256,
            144,
            "gkmDQgAP8Aj2ADgkHBhKAAAwYAAAE7gYAAJiYygEokgA",
        ),
        (
            144,
            256,
            "gkmDQgAI8A/2ADgkHBhKAAAwYAAAE7gYAAJSf+5u+TgA",
        ),
    ),
    ("av1", 8, "420"): (
        (
            256,
            144,
            "EgAKCwAAAAO//HiV8gCAMhIQAIsAgUUIIEAAAAMMGsB5WhA=",
        ),
        (
            144,
            256,
            "EgAKCwAAAAO8f/iV8gCAMhIQAIsAgUUIIEAAAAMMGzIFT2A=",
        ),
    ),
    ("av1", 10, "420"): (
        (
            256,
            144,
            "EgAKCwAAAAO//HiV8oCAMhIQAItAgccMMEAAAAMMGsB5WhA=",
        ),
        (
            144,
            256,
            "EgAKCwAAAAO8f/iV8oCAMhIQAItAgccMMEAAAAMMGzIFT2A=",
        ),
    ),
    ("mpeg1video", 8, "420"): (
        (
            256,
            144,
            "AAABsxAAkBP//+AAAAABuAAIAEAAAAEAAA//+AAAAQETWlKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFy"
            "lKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFy"
            "lKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKREAAABBBNaUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpE"
            "XKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpE"
            "XKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEQAAAEHE1pSkRcpSkRcpS"
            "kRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpS"
            "kRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpS"
            "kRcpSkRA==",
        ),
        (
            144,
            256,
            "AAABswkBABP//+AAAAABuAAIAEAAAAEAAA//+AAAAQETWlKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFy"
            "lKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFy"
            "lKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKREAAAAQYTWlKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKR"
            "FylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKR"
            "FylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKREAAAA"
            "EME1pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcp"
            "SkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcp"
            "SkRcpSkRA=",
        ),
    ),
    ("mpeg2video", 8, "420"): (
        (
            256,
            144,
            "AAABsxAAkDP//+AAAAABtRSKAAEAAAAAAbgACABAAAABAAAP//gAAAG1j//zQYAAAAEBE1pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRc"
            "pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRAAAAQITWlKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKR"
            "FylKRFylKRFylKREAAABAxNaUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEQAAAEEE1"
            "pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRAAAAQUTWlKRFylKRFylKRFylKRFylKR"
            "FylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKREAAABBhNaUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKU"
            "pEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEQAAAEHE1pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRc"
            "pSkRcpSkRAAAAQgTWlKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKRFylKREAAABCRNaUpEXKU"
            "pEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEXKUpEQ=",
        ),
        (
            144,
            256,
            "AAABswkBABP//+AAAAABtRSKAAEAAAAAAbgACABAAAABAAAP//gAAAG1j//zQYAAAAEBE1pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRc"
            "pSkRAAAAECE1pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRAAAAEDE1pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRAA"
            "AAEEE1pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRAAAAEFE1pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRAAAAEGE1"
            "pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRAAAAEHE1pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRAAAAEIE1pSkRcp"
            "SkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRAAAAEJE1pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRAAAAEKE1pSkRcpSkRcpS"
            "kRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRAAAAELE1pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRAAAAEME1pSkRcpSkRcpSkRcpSk"
            "RcpSkRcpSkRcpSkRcpSkRcpSkRAAAAENE1pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRAAAAEOE1pSkRcpSkRcpSkRcpSkRcpSkR"
            "cpSkRcpSkRcpSkRcpSkRAAAAEPE1pSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRcpSkRAAAAEQE1pSkRcpSkRcpSkRcpSkRcpSkRcpSkRc"
            "pSkRcpSkRcpSkRA=",
        ),
    ),
    ("mpeg4", 8, "420"): (
        (
            256,
            144,
            "AAABsAEAAAG1iRMAAAEAAAABIADEjYgAzQgEEhRDAAABskxhdmM2Mi4yOC4xMDIAAAGzABAHAAABthBgUctv422/jbb+Ntv422/jbb+Ntv422/"
            "jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/"
            "jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb9wAAmAkctv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+N"
            "tv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb9/"
            "AACwCRy2/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jb"
            "b+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv38=",
        ),
        (
            144,
            256,
            "AAABsAEAAAG1iRMAAAEAAAABIADEjYgAzQSEIBRDAAABskxhdmM2Mi4yOC4xMDIAAAGzABAHAAABthBgUctv422/jbb+Ntv422/jbb+Ntv422/"
            "jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/"
            "jbb+Ntv422/jbb+Ntv422/jbb98AAJaJHLb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/j"
            "bb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/j"
            "bb+Ntv422/cAALGJHLb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Nt"
            "v422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/jbb+Ntv422/Q==",
        ),
    ),
}


def warm_clips(codec: str, bit_depth: int, chroma_format: str) -> list[tuple[bytes, int, int]]:
    """(elementary stream, width, height) of each clip for the format; none where there is no such clip."""
    clips = _CLIPS.get((codec, bit_depth, chroma_format), ())
    return [(base64.b64decode(text), width, height) for width, height, text in clips]
