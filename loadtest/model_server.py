"""The same job behind a general model server, as a Python team would put it there: a video's bytes in, labels out, over HTTP.

The server is mosec. Of those that were looked at:

- mosec: an HTTP front in Rust, workers as processes, dynamic batching over calls between them, three small dependencies.
- LitServe: the same idea with FastAPI and uvicorn in front; batches are formed in Python, and a video's bytes pass through an
  asyncio loop and a queue in Python on their way to a worker. At most as fast as mosec for bodies of a megabyte.
- Ray Serve: a cluster's scheduler, 74 packages; its actors and object store take memory and processor time that two cores lack.
- PyTriton: Triton's binary beneath; wants arrays rather than encoded files.

So mosec is the hardest of them to beat here, and whatever is said against it holds against the others. It is given what the
usual advice says: a process for each core with single-threaded sessions, and batches over calls. Two ways to decode, each at a
path of its own: `/keyframes` feeds only keyframes to PyAV, which is Keyglance's own idea, and `/opencv` does what most teams do.

It runs in the environment of requirements/baseline.lock: `make baselines` makes that and starts it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

from mosec import Server, Worker

from loadtest.bare import BareLabeler, TimedShot, all_keyframes
from loadtest.baseline_ways import FRAMES, opencv_shots

#: Calls whose pictures share batches, and how long the first waits for the others, in milliseconds.
LARGEST_BATCH, LARGEST_WAIT = 4, 10


class _Labels(Worker):  # type: ignore[misc]  # mosec is not in the environment of development
    """Bytes of videos to names of labels."""

    def __init__(self) -> None:
        super().__init__()
        self._labeler = BareLabeler(threads=1)

    def deserialize(self, data: bytes) -> bytes:
        """The body is the video."""
        return data

    def forward(self, data: Sequence[bytes]) -> list[dict[str, Any]]:
        """One batch of calls."""
        clips = [self.decode(video) for video in data]
        labels = self._labeler.label(clips)
        return [{"labels": names, "pictures": len(clip)} for names, clip in zip(labels, clips, strict=True)]

    def decode(self, video: bytes) -> list[TimedShot]:
        """The pictures to look at."""
        raise NotImplementedError


class Keyframes(_Labels):
    """Keyframes alone, by PyAV."""

    def decode(self, video: bytes) -> list[TimedShot]:
        """At most `FRAMES`."""
        return all_keyframes(video, FRAMES)


class OpenCv(_Labels):
    """The same pictures, by OpenCV."""

    def decode(self, video: bytes) -> list[TimedShot]:
        """At most `FRAMES`."""
        return opencv_shots(video)


def main() -> None:
    """Serves until SIGTERM; mosec reads its own options from the command line."""
    server = Server()
    append = functools.partial(
        server.append_worker,
        num=len(os.sched_getaffinity(0)),
        max_batch_size=LARGEST_BATCH,
        max_wait_time=LARGEST_WAIT,
        timeout=120,
    )
    append(Keyframes, route="/keyframes")
    append(OpenCv, route="/opencv")
    server.run()


if __name__ == "__main__":
    main()
