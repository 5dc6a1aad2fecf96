"""MP4, MOV and 3GP files (ISO/IEC 14496-12, QuickTime) read in Python and numpy: the index of their main video track.

Memory-safe, bounded in every number, through random access to a source, of which only the bytes needed are touched.
"""

from keyglance.mp4.headers import Describe, as_the_container_says, by_bitstream
from keyglance.mp4.limits import Declined, Mp4Limits
from keyglance.mp4.reader import read_index
from keyglance.mp4.source import BytesSource, CountingSource, FileSource, RandomAccess

__all__ = [
    "BytesSource",
    "CountingSource",
    "Declined",
    "Describe",
    "FileSource",
    "Mp4Limits",
    "RandomAccess",
    "as_the_container_says",
    "by_bitstream",
    "read_index",
]
