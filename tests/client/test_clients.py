"""Both clients against a server on loopback: every test runs with each."""

import asyncio
import contextlib
import inspect
import io
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry import context, trace

from keyglance import AsyncClient, Client, Health, RetryPolicy, Tls
from keyglance.connection import Connection
from keyglance.errors import (
    ERRORS,
    DeadlineExceeded,
    Draining,
    EmptySource,
    InternalError,
    KeyglanceError,
    NotAVideo,
    NotPermitted,
    Overloaded,
    RangesNeeded,
    RequestError,
    ServerUnreachable,
    ServiceError,
    TooLarge,
    Unimplemented,
    WorkerLost,
)

FAST = RetryPolicy(retries=3, first_delay=0.01, largest_delay=0.05)
Call = Callable[..., Any]


@pytest.fixture(params=[Client, AsyncClient])
def call(request: pytest.FixtureRequest) -> Call:
    """`call(target, method, *arguments, client={…}, **options)` with a client of its own."""

    def sync(target: str, method: str, *arguments: Any, client: dict[str, Any] | None = None, **options: Any) -> Any:
        with Client(target, **{"retries": FAST, "timeout": 10.0, **(client or {})}) as made:
            return getattr(made, method)(*arguments, **options)

    def asynchronous(target: str, method: str, *arguments: Any, client: dict[str, Any] | None = None, **options: Any) -> Any:
        async def run() -> Any:
            async with AsyncClient(target, **{"retries": FAST, "timeout": 10.0, **(client or {})}) as made:
                return await getattr(made, method)(*arguments, **options)

        return asyncio.run(run())

    return sync if request.param is Client else asynchronous


def test_the_two_clients_take_the_same_arguments() -> None:
    for name in ("__init__", "label", "server_info", "health"):
        ours, theirs = (inspect.signature(getattr(cls, name)) for cls in (Client, AsyncClient))
        assert ours.parameters == theirs.parameters, name


def test_a_file_is_labelled(call: Call, server: Any, video: bytes, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(video)
    for source in (path, str(path), video, io.BytesIO(video)):
        answer = call(server.target, "label", source, frames=8, request_id="r1")
        assert answer.labels[0].name == "espresso"
        assert answer.request_id == "r1"
    assert [request.data for request in server.requests] == [video] * 4
    assert server.requests[0].sampling.frames == 8


@pytest.mark.parametrize(("priority", "number"), [("interactive", 1), ("normal", 2), ("bulk", 3)])
def test_the_priority_is_in_the_request_and_before_it(call: Call, server: Any, video: bytes, priority: str, number: int) -> None:
    call(server.target, "label", video, priority=priority)
    (request,), (metadata,) = server.requests, server.metadata
    assert request.priority == number
    assert metadata["keyglance-priority"] == priority


def test_without_a_priority_none_is_sent(call: Call, server: Any, video: bytes) -> None:
    call(server.target, "label", video)
    assert server.requests[0].priority == 0
    assert "keyglance-priority" not in server.metadata[0]


def test_a_priority_that_there_is_not(call: Call, server: Any, video: bytes) -> None:
    with pytest.raises(ValueError, match="'urgent'; interactive, normal, bulk or None"):
        call(server.target, "label", video, priority="urgent")


def test_server_info_and_health(call: Call, server: Any, info: Any) -> None:
    assert call(server.target, "server_info") == info
    assert call(server.target, "health") is Health.SERVING
    server.health.enter_graceful_shutdown()
    assert call(server.target, "health") is Health.NOT_SERVING


@pytest.mark.parametrize("reason", [reason for reason in ERRORS if reason != ServerUnreachable.reason])
def test_every_error_of_the_server_comes_out_as_itself(call: Call, server: Any, video: bytes, reason: str) -> None:
    server.failures = [ERRORS[reason]("what and why: é", facts={"what": "pixels", "limit": "7"})]
    with pytest.raises(ERRORS[reason]) as caught:
        call(server.target, "label", video, client={"retries": 0})
    error = caught.value
    assert type(error) is ERRORS[reason]
    assert error.message == "what and why: é"
    assert error.facts == {"what": "pixels", "limit": "7"}
    assert isinstance(error.__cause__, grpc.RpcError)
    assert len(server.requests) == 1


def test_a_reason_of_a_newer_server_keeps_its_branch_and_word(call: Call, server: Any, video: bytes) -> None:
    class Newer(RequestError):
        reason = "NEWER_THAN_THIS"

    class NewerService(ServiceError):
        reason = "NEWER_FAULT"

    for cls, branch in ((Newer, RequestError), (NewerService, ServiceError)):
        server.failures = [cls("so it is")]
        with pytest.raises(branch, match=f"so it is .{cls.reason}") as caught:
            call(server.target, "label", video, client={"retries": 0})
        assert caught.value.facts["reason"] == cls.reason


def test_statuses_from_elsewhere(call: Call, server: Any, video: bytes) -> None:
    for code, cls in (
        (grpc.StatusCode.PERMISSION_DENIED, NotPermitted),
        (grpc.StatusCode.UNKNOWN, InternalError),
        (grpc.StatusCode.UNAVAILABLE, ServerUnreachable),
        (grpc.StatusCode.UNIMPLEMENTED, Unimplemented),
        (grpc.StatusCode.NOT_FOUND, RequestError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Overloaded),
    ):
        server.failures = [code]
        with pytest.raises(cls) as caught:
            call(server.target, "label", video, client={"retries": 0})
        assert type(caught.value) is cls
        assert server.target in caught.value.message
        assert caught.value.facts["status"] == code.name


def test_the_trace_of_a_failed_call_is_among_its_facts(call: Call, server: Any, video: bytes) -> None:
    server.before = lambda call: call.set_trailing_metadata((("keyglance-trace-id", "ab" * 16),))
    server.failures = [grpc.StatusCode.INTERNAL]
    with pytest.raises(InternalError) as caught:
        call(server.target, "label", video)
    assert caught.value.facts["trace_id"] == "ab" * 16


def test_an_unreachable_server_is_named(call: Call, closed_target: str, video: bytes) -> None:
    for method, arguments in (("label", [video]), ("server_info", []), ("health", [])):
        with pytest.raises(ServerUnreachable, match=rf"{closed_target}: .*refused"):
            call(closed_target, method, *arguments)


class Distance:
    """A way to a server on which every byte that comes back takes `seconds`."""

    def __init__(self, target: str, seconds: float) -> None:
        self._target, self._seconds = target, seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = [self._listener]

    def __enter__(self) -> "Distance":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                host, _, port = self._target.rpartition(":")
                far = socket.create_connection((host, int(port)))
                self._sockets += [near, far]
                for source, target, seconds in ((near, far, 0.0), (far, near, self._seconds)):
                    threading.Thread(target=self._carry, args=(source, target, seconds), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, seconds: float) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                time.sleep(seconds)
                target.sendall(content)


def test_a_server_that_is_slow_to_greet_is_reached_at_the_first_attempt(call: Call, server: Any, video: bytes) -> None:
    with Distance(server.target, 0.3) as distance:
        answer = call(distance.target, "label", video, client={"retries": 0})
    assert answer.labels
    assert len(server.requests) == 1


def test_transient_errors_are_tried_again(call: Call, server: Any, video: bytes) -> None:
    server.failures = [Draining("bye"), WorkerLost("gone"), Overloaded("full", retry_after=0.02)]
    with pytest.raises(WorkerLost):  # Not the first failure any more, so it is final.
        call(server.target, "label", video)
    server.failures = [WorkerLost("gone"), Overloaded("full", retry_after=0.02), grpc.StatusCode.UNAVAILABLE]
    assert call(server.target, "label", video).labels
    assert len(server.requests) == 2 + 4


def test_a_call_that_a_stopping_server_drops_is_made_again(call: Call, server: Any, video: bytes) -> None:
    server.failures = [grpc.StatusCode.CANCELLED]  # by nobody here
    assert call(server.target, "label", video).labels
    server.failures = [grpc.StatusCode.CANCELLED] * 10
    with pytest.raises(ServerUnreachable, match=f"^{server.target} broke the call off$"):
        call(server.target, "label", video)


def test_the_time_that_the_server_names_is_waited_for(call: Call, server: Any, video: bytes) -> None:
    server.failures = [Overloaded("full", retry_after=0.3)]
    began = time.monotonic()
    call(server.target, "label", video)
    assert time.monotonic() - began >= 0.3


def test_retries_are_counted(call: Call, server: Any, video: bytes) -> None:
    server.failures = [Draining("bye")] * 10
    with pytest.raises(Draining):
        call(server.target, "label", video)
    assert len(server.requests) == 1 + FAST.retries


def test_final_errors_are_not_tried_again(call: Call, server: Any) -> None:
    with pytest.raises(NotAVideo):
        call(server.target, "label", b"text")
    server.failures = [Overloaded("full, and no word of later")]
    with pytest.raises(Overloaded):
        call(server.target, "label", b"text")
    assert len(server.requests) == 2


def test_a_wait_longer_than_the_deadline_is_not_begun(call: Call, server: Any, video: bytes) -> None:
    server.failures = [Overloaded("full", retry_after=3600)]
    with pytest.raises(Overloaded) as caught:
        call(server.target, "label", video, timeout=5)
    assert caught.value.retry_after == 3600


def test_the_deadline_reaches_the_server(call: Call, server: Any, video: bytes) -> None:
    call(server.target, "label", video, timeout=7)
    call(server.target, "label", video, client={"timeout": 100.0})
    call(server.target, "label", video, client={"timeout": None})
    first, second, none = server.deadlines
    assert 0 < first < 8  # gRPC rounds up, to about a hundredth.
    assert 8 < second < 103
    assert none is None


def test_the_deadline_holds_for_all_attempts_together(call: Call, server: Any, video: bytes) -> None:
    server.failures = [Overloaded("full", retry_after=0.4)]
    call(server.target, "label", video, timeout=5)
    assert server.deadlines[1] < server.deadlines[0] - 0.3


def test_a_missed_deadline(call: Call, server: Any, video: bytes) -> None:
    released = threading.Event()
    server.before = lambda _: released.wait(10) and None
    try:
        with pytest.raises(DeadlineExceeded, match=rf"{server.target} within 0\.2 s"):
            call(server.target, "label", video, timeout=0.2)
    finally:
        released.set()


def test_what_is_wrong_here_is_not_sent(call: Call, server: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    for source, cls in (
        (tmp_path / "empty.mp4", EmptySource),
        (tmp_path / "none.mp4", FileNotFoundError),
        (tmp_path, IsADirectoryError),
    ):
        with pytest.raises(cls):
            call(server.target, "label", source)
    with pytest.raises(TooLarge):
        call(server.target, "label", bytes(2000), client={"max_message_bytes": 1000})
    assert server.requests == []


def test_a_server_with_a_smaller_limit_refuses_by_name(call: Call, new_server: Callable[..., Any], video: bytes) -> None:
    server = new_server(options=[("grpc.max_receive_message_length", 1000)])
    with pytest.raises(TooLarge) as caught:
        call(server.target, "label", video + bytes(2000))
    assert caught.value.facts["limit"] == "1000"


def test_an_answer_over_the_limit_is_told(call: Call, server: Any, video: bytes) -> None:
    with pytest.raises(TooLarge, match="the answer has"):
        call(server.target, "label", video, client={"max_message_bytes": 200})


def test_metadata_token_and_trace_context_travel(call: Call, server: Any, video: bytes) -> None:
    span = trace.SpanContext(
        0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, is_remote=False, trace_flags=trace.TraceFlags(1)
    )
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(span)))
    try:
        call(server.target, "label", video, client={"token": "s3cret", "metadata": [("x-tenant", "a"), ("x-bin", b"\0\1")]})
    finally:
        context.detach(token)
    (metadata,) = server.metadata
    assert metadata["traceparent"] == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert metadata["authorization"] == "Bearer s3cret"
    assert (metadata["x-tenant"], metadata["x-bin"]) == ("a", b"\0\1")
    assert metadata["user-agent"].startswith("keyglance-python/")


def test_tls(call: Call, new_server: Callable[..., Any], certificate: tuple[Path, Path], video: bytes) -> None:
    chain, key = certificate
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), chain.read_bytes())], chain.read_bytes(), True)
    server = new_server(credentials=credentials)
    target = server.target.replace("127.0.0.1", "localhost")
    good = Tls(root_certificates=chain, certificate=chain, key=key.read_bytes())
    assert call(target, "label", video, client={"tls": good, "token": "s3cret"}).labels
    assert call(target, "label", video, client={"tls": good.credentials()}).labels
    for bad in (True, False, Tls(root_certificates=chain)):  # Unknown authority; no TLS at all; no certificate of its own.
        with pytest.raises(ServerUnreachable):
            call(target, "label", video, client={"tls": bad, "retries": 0})


def test_settings_that_make_no_sense(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    for wrong in ({"timeout": 0}, {"retries": -1}, {"max_message_bytes": 0}, {"connections": 0}):
        for cls in (Client, AsyncClient):
            with pytest.raises(ValueError, match="allowed"):
                cls(**wrong)
    with pytest.raises(ValueError, match="scheme"):
        Client("http://localhost:50051")
    with pytest.raises(ValueError, match="unencrypted"):
        Client("labels.example:443", token="s3cret")
    with pytest.raises(ValueError, match="key"):
        Tls(certificate=certificate[0])
    (tmp_path / "no.pem").write_text("no")
    with pytest.raises(ValueError, match=r"no\.pem"):
        Client(tls=Tls(root_certificates=tmp_path / "no.pem"))


@pytest.mark.parametrize(
    ("target", "local"),
    [
        ("127.0.0.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("unix:/run/keyglance.sock", True),
        ("dns:///localhost:1", True),
        ("ipv6:[::1]:1", True),
        ("localhost.evil.example:1", False),
        ("10.0.0.7:1", False),
        ("dns:///labels.example:443", False),
    ],
)
def test_which_targets_are_this_machine(target: str, local: bool) -> None:
    options: dict[str, Any] = {
        "timeout": None,
        "metadata": (),
        "retries": 0,
        "max_message_bytes": 1,
        "connections": 1,
        "tls": False,
    }
    if local:
        assert ("authorization", "Bearer t") in Connection(target, token="t", **options).metadata()
    else:
        with pytest.raises(ValueError, match="unencrypted"):
            Connection(target, token="t", **options)
    assert (("grpc.enable_http_proxy", 0) in Connection(target, token=None, **options).options) is local


def test_a_client_is_not_used_across_a_fork(monkeypatch: pytest.MonkeyPatch, call: Call, server: Any, video: bytes) -> None:
    here = os.getpid()
    pids = iter([here])
    monkeypatch.setattr("keyglance.connection.os.getpid", lambda: next(pids, here + 1))
    with pytest.raises(RuntimeError, match="fork"):
        call(server.target, "label", video)


def test_one_client_serves_many_threads(server: Any, video: bytes) -> None:
    with Client(server.target) as client, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda number: client.label(video, request_id=str(number)), range(40)))
    assert [answer.request_id for answer in answers] == [str(number) for number in range(40)]


async def test_one_async_client_serves_many_tasks(server: Any, video: bytes) -> None:
    async with AsyncClient(server.target) as client:
        answers = await asyncio.gather(*(client.label(video, request_id=str(number)) for number in range(40)))
    assert [answer.request_id for answer in answers] == [str(number) for number in range(40)]


@pytest.mark.parametrize("connections", [1, 3])
async def test_calls_take_turns_over_the_connections(server: Any, video: bytes, connections: int) -> None:
    peers: list[str] = []
    server.before = lambda context: peers.append(context.peer())
    with Client(server.target, connections=connections) as client:
        for _ in range(6):
            await asyncio.to_thread(client.label, video)
        assert (client.server_info().version, client.health()) == (server.info.version, Health.SERVING)
    async with AsyncClient(server.target, connections=connections) as asynchronous:
        for _ in range(6):
            await asynchronous.label(video)
    for one in (peers[:6], peers[6:]):
        assert one[:connections] * (6 // connections) == one
        assert len(set(one)) == connections


async def test_an_attempt_after_a_failure_takes_another_connection(server: Any, video: bytes) -> None:
    peers: list[str] = []
    server.before = lambda context: peers.append(context.peer())
    server.failures = [WorkerLost("gone")]
    with Client(server.target, connections=2, retries=FAST) as client:
        await asyncio.to_thread(client.label, video)
        server.failures = [WorkerLost("gone")]
        async with AsyncClient(server.target, connections=2, retries=FAST) as asynchronous:
            await asynchronous.label(video)
    assert peers[0] != peers[1]
    assert peers[-1] != peers[-2]


async def test_a_cancelled_task_cancels_the_call(server: Any, video: bytes) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    def hold(call: grpc.ServicerContext) -> None:
        call.add_callback(cancelled.set)
        begun.set()
        cancelled.wait(10)

    server.before = hold
    async with AsyncClient(server.target) as client:
        task = asyncio.create_task(client.label(video))
        assert await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(cancelled.wait, 10)


def test_errors_are_keyglance_errors_all() -> None:
    assert all(issubclass(cls, KeyglanceError) for cls in ERRORS.values())
    assert issubclass(ServerUnreachable, ServiceError)


def test_what_the_server_lacks_is_sent_once_and_by_itself(call: Call, server: Any, long_clip: bytes, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(long_clip)
    lacking = (len(long_clip) // 2, 1000)
    server.failures = [RangesNeeded("more bytes", ranges=[lacking])]
    call(server.target, "label", path)
    first, second = server.requests
    assert not first.data
    assert lacking not in [(part.offset, len(part.data)) for part in first.ranges.ranges]
    sent = b"".join(part.data for part in second.ranges.ranges if lacking[0] <= part.offset < sum(lacking))
    assert sent
    assert sent in long_clip[lacking[0] : sum(lacking)]


def test_a_server_that_is_never_content_gets_an_error_raised(call: Call, server: Any, long_clip: bytes) -> None:
    server.failures = [RangesNeeded("more bytes", ranges=[(len(long_clip) - 10 * n, 10)]) for n in (1, 2, 3)]
    with pytest.raises(RangesNeeded) as caught:
        call(server.target, "label", long_clip)
    assert caught.value.ranges == ((len(long_clip) - 20, 10),)
    assert len(server.requests) == 2
