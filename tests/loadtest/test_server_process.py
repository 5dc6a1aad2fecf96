from pathlib import Path

import pytest

from loadtest.server_process import ServerFailed, ServerProcess


def test_a_server_that_cannot_start_is_told_with_its_log(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, environment={"KEYGLANCE_SERVER__GRACE": "soon"})
    with pytest.raises(ServerFailed, match=r"exit code 2\n.*grace"), server:
        pass
    assert "exit code 2" in repr(server)
