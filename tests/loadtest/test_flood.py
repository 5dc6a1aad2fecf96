from collections import Counter

import pytest

from keyglance.mp4 import BytesSource, read_index
from keyglance.v1 import keyglance_pb2 as pb
from loadtest import flood
from loadtest.server_process import ServerProcess


def test_the_padded_clip_is_a_video_of_the_size_asked_for() -> None:
    request = pb.LabelRequest.FromString(flood.message(1 << 20))
    assert len(request.data) == 1 << 20
    assert len(read_index(BytesSource(request.data)).samples) == 50


@pytest.mark.models
async def test_every_caller_gets_an_answer_and_a_refusal_is_told(server: ServerProcess) -> None:
    assert await flood.flood(server.address, flood.message(1 << 20), 6, 60) == Counter(OK=6)
    assert await flood.flood(server.address, pb.LabelRequest(data=b"text").SerializeToString(), 2, 60) == Counter(
        INVALID_ARGUMENT=2
    )
