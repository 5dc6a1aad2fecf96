"""The dry run: a whole server on a free port of the loopback interface, and one tiny video through it."""

from __future__ import annotations

import io

import grpc

from keyglance.v1 import keyglance_pb2 as pb
from keyglance.v1.keyglance_pb2_grpc import ShortVideoLabelerStub
from server.config import Config
from server.lifecycle import MakeParts, Server, StartError, credentials, end_telemetry
from server.telemetry import Telemetry

_DEADLINE = 60.0  # seconds; a check may come with a cold disk


async def check_server(config: Config, telemetry: Telemetry, make_parts: MakeParts) -> str:
    """Starts everything, labels a tiny video, ends everything. Returns one line about it; raises `StartError` or what failed."""
    credentials(config.server)
    section = config.server.model_copy(
        update={"listen": "127.0.0.1:0", "tls_certificate": None, "tls_key": None, "tls_client_ca": None}
    )
    server = Server(config.model_copy(update={"server": section}), telemetry, make_parts(config, telemetry))
    try:
        await server.start()
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = ShortVideoLabelerStub(channel)
            info = await stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=_DEADLINE)
            answer = await stub.Label(pb.LabelRequest(data=tiny_video(), request_id="check"), timeout=_DEADLINE)
    except grpc.aio.AioRpcError as error:
        raise StartError(f"a tiny video was not labelled: {error.code().name}: {error.details()}") from None
    finally:
        await server.close()
        await end_telemetry(telemetry)
    if not answer.coverage.frames:
        raise StartError("a tiny video was labelled, but not one picture of it was seen")
    models = ", ".join(model.name for model in info.models)
    return (
        f"ok: {answer.coverage.frames} pictures of a tiny video labelled by {len(info.models)} models ({models}) on {info.device}"
    )


def tiny_video() -> bytes:
    """Two grey pictures of 64x48 as MPEG-4 in MP4, made here: nothing untrusted is read."""
    import av  # FFmpeg is needed for the dry run only; a server loads it in its workers
    import numpy as np

    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=2)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(2):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), 128, np.uint8), format="rgb24")))
        container.mux(stream.encode())
    return out.getvalue()
