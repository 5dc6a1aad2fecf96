from pathlib import Path

import pytest

from loadtest.server_process import ServerFailed, ServerProcess

ENGINE = "drained: <LocalEngine DecoderPool(cpu, 4 of 4 decoders: 4 idle; 0 waiting) <Ensemble m slots=0/2>, 0 frames in flight>"
GPU = (
    "drained: <GpuEngine DecoderPool(nvdec, 28 of 28 decoders: 28 idle; 0 waiting) <DeviceEnsemble m: 0 queued, "
    "0 batches enqueued>, 0 jobs in flight>"
)
FRONT = "drained: <EngineGroup <RemoteEngine engine-0 healthy, 0 jobs with 0 pictures in flight>>, Indexer(2 of 2 workers idle)"


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ([], "the server did not say that it has drained"),
        ([FRONT], "the server did not say that it has drained"),
        ([ENGINE], ""),
        ([FRONT, FRONT, ENGINE, "ended"], ""),
        ([FRONT, GPU, GPU], ""),
        ([GPU.replace("0 jobs", "1 jobs")], GPU.replace("0 jobs", "1 jobs")),
        ([GPU, GPU.replace("0 queued", "5 queued")], GPU.replace("0 queued", "5 queued")),
        ([FRONT, FRONT.replace("0 jobs", "3 jobs"), ENGINE], FRONT.replace("0 jobs", "3 jobs")),
        ([FRONT, ENGINE.replace("4 idle", "3 idle, 1 leased")], ENGINE.replace("4 idle", "3 idle, 1 leased")),
        ([ENGINE.replace("0 frames", "12 frames")], ENGINE.replace("0 frames", "12 frames")),
        ([ENGINE.replace("0 waiting", "2 waiting"), ENGINE], ENGINE.replace("0 waiting", "2 waiting")),
    ],
)
def test_what_the_last_words_say_of_calls(tmp_path: Path, lines: list[str], left: str) -> None:
    server = ServerProcess(tmp_path)
    server.errors.write_text("\n".join(lines))
    assert server.left_behind() == left


def test_where_the_metrics_are(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    server.errors.write_text("")
    assert server.metrics == ""
    server.errors.write_text(
        '[front-0] metrics on unix:/run/x/front-0\n{"message": "metrics of all processes on 127.0.0.1:9464"}\n'
    )
    assert server.metrics == "127.0.0.1:9464"
    server.errors.write_text("INFO server.lifecycle: metrics on [::1]:9465\n")
    assert server.metrics == "[::1]:9465"


def test_a_server_is_complete_once_every_engine_was_ready(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    server.errors.write_text("INFO server.lifecycle: listening on 127.0.0.1:50051, ready\n")
    assert server.complete, "it has no engine processes"
    lines = "[engine-1] ready: <GpuEngine>\nINFO listening on 127.0.0.1:50051, fronts: 3, engines: 2\n"
    server.errors.write_text(lines)
    assert not server.complete
    server.errors.write_text(lines + '{"process": "engine-0", "message": "ready: <GpuEngine>"}\n')
    assert server.complete


def test_a_server_that_cannot_start_is_told_with_its_log(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, environment={"KEYGLANCE_SERVER__GRACE": "soon"})
    with pytest.raises(ServerFailed, match=r"exit code 2\n.*grace"), server:
        pass
    assert "exit code 2" in repr(server)
