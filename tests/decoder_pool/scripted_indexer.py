"""An index worker that misbehaves as its source, a JSON text, tells it to."""

import json
import os
import signal
import struct
import time

from decoder_pool.worker_main import Refusal, serve

GOOD = {
    "container": "mov",
    "codec": "h264",
    "width": 64,
    "height": 48,
    "bit_depth": 8,
    "chroma_format": "420",
    "profile": "High",
    "extradata": "AAECAw==",
    "codec_tag": 0,
    "bits_per_coded_sample": 24,
    "sample_aspect": [1, 1],
    "colour": [2, 2, 2, "limited", None],
    "degrees": 0,
    "mirrored": False,
    "samples": 3,
    "duration": 1.0,
    "track": 0,
    "other_video_tracks": 0,
    "notes": [],
    "truncated": False,
}
ARRAYS = {"position": [-1, 0, 1], "size": [1, 2, 3], "time": [0, 0.1, 0.2], "duration": [0, 0, 0], "flags": [1, 0, 0]}

script = {}


def act():
    do = script.get("do")
    if do == "hang":
        time.sleep(script["seconds"])
    elif do == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif do == "bomb":
        bytearray(1 << 40)
    elif do == "refuse":
        raise Refusal(script["kind"], script["message"])
    elif do == "fail":
        raise RuntimeError("a bug")


def open_(arguments, fds):
    script.clear()
    script.update(json.loads(os.pread(fds[0], arguments["size"], 0)))
    if script.get("when", "open") == "open":
        act()
    arrays = ARRAYS | script.get("arrays", {})
    data = b"".join(
        struct.pack(f"<{len(v)}{form}", *(float(x) if form == "d" else x for x in v))
        for v, form in zip(arrays.values(), "qqddB", strict=True)
    )
    os.pwrite(fds[1], data, 0)
    values = GOOD | script.get("values", {})
    return {k: v for k, v in values.items() if k not in script.get("without", [])}


def packets(arguments, fds):
    if script.get("when") == "packets":
        act()
    size = sum(ARRAYS["size"][n] for a, b in arguments["ranges"] for n in range(a, b))
    os.pwrite(fds[0], b"x" * size, 0)
    return script.get("reply", {"written": size})


def close(arguments, fds):
    script.clear()
    return {}


if __name__ == "__main__":
    serve({"open": open_, "packets": packets, "close": close})
