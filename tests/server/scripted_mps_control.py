"""Stands in for `nvidia-cuda-mps-control`: with -f the daemon, else a client that sends it what comes on standard input.

MPS_FAKE says what the daemon does: "" it works, "refuse" it ends at once with a line in its log, "hang" it never listens,
"mute" it never answers, "deaf" it never ends.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

control = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control")
does = os.environ.get("MPS_FAKE", "")


def daemon() -> int:
    if does == "refuse":
        Path(os.environ["CUDA_MPS_LOG_DIRECTORY"], "control.log").write_text("starting\nan instance of it runs already\n")
        return 1
    # Its server, in a session of its own.
    server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    if does == "hang":
        time.sleep(60)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(control))
    listening.listen()
    while True:
        connection, _ = listening.accept()
        with connection:
            told = connection.recv(100).decode().split()
            if does == "mute":
                time.sleep(60)
            connection.sendall(b"\n")
        if "quit" in told and does != "deaf":
            server.kill()
            return 0


def client() -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(control))
        except OSError:
            print("Cannot find MPS control daemon process")
            return 1
        connection.sendall(sys.stdin.buffer.read())
        connection.recv(100)
    return 0


sys.exit(daemon() if sys.argv[1:] == ["-f"] else client())
