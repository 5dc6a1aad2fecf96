"""The demonstration: starts a server, labels a clip through the client's command line, shows the trace, stops the server."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from loadtest.server_process import ServerFailed, ServerProcess

ENVIRONMENT = {"KEYGLANCE_TELEMETRY__CONSOLE": "true", "KEYGLANCE_TELEMETRY__LOG_LEVEL": "warning"}


def main() -> int:
    """Runs it; the exit code is the client's, or 1 where the server failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clip", type=Path)
    clip = parser.parse_args().clip
    with tempfile.TemporaryDirectory(prefix="keyglance-demo-") as scratch:
        server = ServerProcess(Path(scratch), environment=ENVIRONMENT)
        try:
            print("Starting a server: its workers, decoders and models are made before the first call …", flush=True)
            with server:
                print(f"\n$ keyglance label {clip} --server {server.address}", flush=True)
                client = Path(sys.executable).with_name("keyglance")
                status = subprocess.run([client, "label", clip, "--server", server.address], check=False).returncode
        except ServerFailed as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        if status:
            print(f"\nThe call failed (exit code {status}). The end of the server's log:\n{server.log()}", file=sys.stderr)
            return status
        print(f"\nThe call's trace, as the server saw it:\n{server.log()}")
    print("\nThe server has stopped. `make serve` runs one for you, `keyglance --help` says what else the client does.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
