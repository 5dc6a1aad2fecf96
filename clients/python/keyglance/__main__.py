"""The console script `keyglance`, and `python -m keyglance`."""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """Runs the command line: never a traceback, unless KEYGLANCE_DEBUG asks for it."""
    # What gRPC would log is in our one line already. It reads this when it is imported, so the import comes after.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # A terminal without Unicode shows "?", where it would else be an error.

    from keyglance.cli import Exit, command
    from keyglance.text import plain

    try:
        command.main(prog_name="keyglance")
    except Exception as error:
        if os.environ.get("KEYGLANCE_DEBUG"):
            raise
        line = f"keyglance: INTERNAL: {type(error).__name__}: {plain(str(error))} (KEYGLANCE_DEBUG=1 shows where)"
        print(line, file=sys.stderr)
        sys.exit(Exit.FAILED)


if __name__ == "__main__":
    main()
