"""A worker that does what the tests of `Worker` need: echoes, hangs, bombs, lies."""

import os
import socket
import sys
import time

from decoder_pool.worker_frames import ENV_SOCKET
from decoder_pool.worker_main import Refusal, serve


def echo(arguments, fds):
    return {"arguments": arguments, "read": [os.pread(fd, 100, 0).decode() for fd in fds]}


def give(arguments, fds):
    made = os.memfd_create("given", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.write(made, arguments["text"].encode())
    return {"size": len(arguments["text"])}, [made]


def refuse(arguments, fds):
    raise Refusal(arguments["kind"], arguments["message"])


def fail(arguments, fds):
    return {"x": 1 / 0}


def wait(arguments, fds):
    time.sleep(arguments["seconds"])
    return {"slept": arguments["seconds"]}


def crash(arguments, fds):
    os.kill(os.getpid(), arguments["signal"])


def bomb(arguments, fds):
    held = []
    while True:
        held.append(bytearray(8 << 20))


def raw(arguments, fds):
    """Writes bytes of the test's choice on the wire in place of a reply."""
    sock = socket.socket(fileno=os.dup(int(os.environ[ENV_SOCKET])))
    sock.sendall(bytes.fromhex(arguments["hex"]))
    time.sleep(arguments.get("then", 60))
    return {}


def hush(arguments, fds):
    os.close(int(os.environ[ENV_SOCKET]))
    time.sleep(60)


def environment(arguments, fds):
    return {"names": sorted(os.environ), "fds": sorted(os.listdir("/proc/self/fd")), "limits": open("/proc/self/limits").read()}


if __name__ == "__main__":
    if os.environ.get("LANG") == "broken":
        sys.exit(3)
    serve({f.__name__: f for f in (echo, give, refuse, fail, wait, crash, bomb, raw, hush, environment)})
