"""A small Keyglance server on loopback that answers by script, and an answer with something in every field."""

import io
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from PIL import Image

from keyglance.errors import ERROR_DOMAIN, EmptySource, KeyglanceError, NotAVideo, NoVideoStream, RangesNeeded
from keyglance.v1 import keyglance_pb2 as pb
from keyglance.v1 import keyglance_pb2_grpc
from loadtest.clips import encode, pan, photograph


def status_of(error: KeyglanceError, *, domain: str = ERROR_DOMAIN) -> grpc.Status:
    """The status as the API describes it: ErrorInfo, and RetryInfo where the error says when to come back."""
    details = [error_details_pb2.ErrorInfo(reason=error.reason, domain=domain, metadata=error.facts)]
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(error.retry_after * 1e9))
        details.append(retry)
    if isinstance(error, RangesNeeded):
        details.append(pb.MissingRanges(ranges=[pb.MissingRange(offset=offset, size=size) for offset, size in error.ranges]))
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    return rpc_status.to_status(status_pb2.Status(code=error.status.value[0], message=error.message, details=packed))


@dataclass
class FakeServer(keyglance_pb2_grpc.ShortVideoLabelerServicer):
    """Fails with `failures` first, one a call, then answers; remembers what it was asked."""

    answer: pb.LabelResponse
    info: pb.GetServerInfoResponse
    failures: list[KeyglanceError | grpc.StatusCode] = field(default_factory=list)
    before: Callable[[grpc.ServicerContext], None] | None = None
    requests: list[pb.LabelRequest] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    target: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.health = health.HealthServicer()
        self.health.set("", health_pb2.HealthCheckResponse.SERVING)

    def Label(self, request: pb.LabelRequest, context: grpc.ServicerContext) -> pb.LabelResponse:
        with self.lock:
            self.requests.append(request)
            self.metadata.append(dict(context.invocation_metadata()))
            remaining = context.time_remaining()
            self.deadlines.append(remaining if remaining is not None and remaining < 1e6 else None)
            failure = self.failures.pop(0) if self.failures else None
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            if self.before is not None:
                self.before(context)
        finally:
            with self.lock:
                self.running -= 1
        if isinstance(failure, KeyglanceError):
            context.abort_with_status(status_of(failure))
        elif failure is not None:
            context.abort(failure, "by script")
        begins = request.data or next((part.data for part in request.ranges.ranges if part.offset == 0), b"")
        if not begins:
            context.abort_with_status(status_of(EmptySource("the request has no source")))
        if b"ftyp" not in begins[:12]:
            context.abort_with_status(status_of(NotAVideo("the bytes are no known container")))
        if b"audio" in request.data:
            context.abort_with_status(status_of(NoVideoStream("mp4 with 1 audio stream and no video")))
        answer = pb.LabelResponse()
        answer.CopyFrom(self.answer)
        answer.request_id = request.request_id
        return answer

    def GetServerInfo(self, request: pb.GetServerInfoRequest, context: grpc.ServicerContext) -> pb.GetServerInfoResponse:
        return self.info

    def start(
        self, *, options: list[tuple[str, int]] | None = None, credentials: grpc.ServerCredentials | None = None
    ) -> grpc.Server:
        server = grpc.server(ThreadPoolExecutor(8), options=options or [("grpc.max_receive_message_length", -1)])
        keyglance_pb2_grpc.add_ShortVideoLabelerServicer_to_server(self, server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        if credentials is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        self.target = f"127.0.0.1:{port}"
        return server


#: What the fake server takes for a video.
VIDEO = b"\0\0\0\x18ftypisom" + bytes(64)


@pytest.fixture
def video() -> bytes:
    return VIDEO


@pytest.fixture
def server(answer: pb.LabelResponse, info: pb.GetServerInfoResponse) -> Iterator[FakeServer]:
    fake = FakeServer(answer, info)
    running = fake.start()
    yield fake
    running.stop(None).wait()


@pytest.fixture(scope="session")
def long_clip() -> bytes:
    """A clip of which a part of the bytes is enough."""
    return encode(pan(photograph("coffee"), 90, 320, 240), keyframe_interval=30, options={"crf": "4"})


@pytest.fixture
def closed_target() -> str:
    """An address at which nothing listens."""
    return "127.0.0.1:1"


@pytest.fixture
def info() -> pb.GetServerInfoResponse:
    labels = [pb.LabelInfo(name="espresso", threshold=0.5), pb.LabelInfo(name="cup", threshold=0.5)]
    return pb.GetServerInfoResponse(
        version="0.1.0",
        models=[
            pb.Model(name="tags", version="1", digest="ab" * 32, default_on=True, licence="Apache-2.0", labels=labels),
            pb.Model(
                name="faces", version="2", digest="cd" * 32, required=True, licence="MIT", labels=[pb.LabelInfo(name="face")]
            ),
        ],
        limits=pb.Limits(bytes=64 << 20, pixels=33_177_600, seconds=600, samples=100_000, frames=64, default_deadline=30),
        decoders=[pb.DecoderInfo(kind="cpu", decoders=2, limit=8, codecs=["h264", "hevc"])],
        device="cpu",
    )


def jpeg(size: tuple[int, int], colour: tuple[int, int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "JPEG", quality=95)
    return file.getvalue()


@pytest.fixture
def answer() -> pb.LabelResponse:
    return pb.LabelResponse(
        labels=[
            pb.Label(
                name="espresso",
                parent="drink",
                score=0.97,
                threshold=0.5,
                passed=True,
                segments=[
                    pb.Segment(start=0, end=65.5, peak=3, score=0.97),
                    pb.Segment(start=70.2, end=70.2, peak=70.2, score=0.6),
                ],
                sources=[pb.ModelScore(model="tags", score=0.97)],
            ),
            pb.Label(name="cup", score=0.31, threshold=0.5, sources=[pb.ModelScore(model="tags", score=0.31)]),
        ],
        verdict=pb.VERDICT_REVIEW,
        verdict_reasons=["a degraded answer is reviewed"],
        frames=[
            pb.Frame(
                time=0.0,
                index=0,
                keyframe=True,
                thumbnail=jpeg((256, 144), (200, 30, 30)),
                scores=[
                    pb.FrameScore(label="espresso", model="tags", score=0.97),
                    pb.FrameScore(label="cup", model="tags", score=0.2),
                ],
                regions=[pb.Region(label="face", model="faces", score=0.88, x=0.25, y=0.25, width=0.25, height=0.5)],
            ),
            pb.Frame(time=10.04, index=250, thumbnail=jpeg((256, 144), (30, 200, 30)), outside_edit=True),
            pb.Frame(time=70.2, index=1755, keyframe=True, skipped=pb.DEGRADATION_REASON_FRAME_DAMAGED),
        ],
        video=pb.Video(
            container="mov,mp4",
            codec="h264",
            profile="High",
            width=1920,
            height=1080,
            bit_depth=8,
            chroma_format="420",
            rotation=90,
            duration=75.4,
            samples=1885,
            keyframes=8,
            size=5_242_880,
        ),
        models=[pb.Model(name="tags", version="1", labels=[pb.LabelInfo(name="espresso", threshold=0.5)])],
        coverage=pb.Coverage(frames=2, largest_gap=60.2, largest_gap_start=10.04),
        degradations=[
            pb.Degradation(reason=pb.DEGRADATION_REASON_FRAME_DAMAGED, count=1, detail="1 of 3 pictures was damaged"),
            pb.Degradation(reason=pb.DEGRADATION_REASON_GAP_EXCEEDED, count=2, detail="60.2 s where 10 s are wanted"),
        ],
        timings=[
            pb.StepTiming(step="index", start_ms=0, wall_ms=12.3),
            pb.StepTiming(step="decode", start_ms=12, wall_ms=140.2, wait_ms=3.4, created=1),
            pb.StepTiming(step="total", start_ms=0, wall_ms=412.0),
        ],
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    )


@pytest.fixture
def new_server(answer: pb.LabelResponse, info: pb.GetServerInfoResponse) -> Iterator[Callable[..., FakeServer]]:
    """Starts further fake servers, with options or credentials."""
    running: list[grpc.Server] = []

    def start(**how: Any) -> FakeServer:
        fake = FakeServer(answer, info)
        running.append(fake.start(**how))
        return fake

    yield start
    for server in running:
        server.stop(None).wait()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost and its key, as PEM files."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    chain, key = folder / "cert.pem", folder / "key.pem"
    command = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(chain)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return chain, key
