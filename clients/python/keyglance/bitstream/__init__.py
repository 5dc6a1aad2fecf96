"""Headers in the bitstream: what a video stream is by its own word, and what each of its samples holds.

`describe` corrects a `StreamConfig` by the codec configuration record and the first key sample; `sample_kind` says whether
one sample is an IDR picture, a recovery point, a P picture …; `StreamHeaders` does both over many samples of one stream.
Nothing is decoded, the input is taken for hostile, and nothing here raises on it.
"""

from keyglance.bitstream.bits import BitstreamError
from keyglance.bitstream.facts import SampleFacts, SampleKind, SequenceFacts
from keyglance.bitstream.headers import Described, StreamHeaders, describe, sample_kind

__all__ = [
    "BitstreamError",
    "Described",
    "SampleFacts",
    "SampleKind",
    "SequenceFacts",
    "StreamHeaders",
    "describe",
    "sample_kind",
]
