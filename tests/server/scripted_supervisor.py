"""A supervisor of scripted fronts and engines in a process of its own: `scripted_supervisor.py PORT_FILE`."""

import asyncio
import os
import sys
from pathlib import Path

from server import logs, port_file
from server.config import Config
from server.engine_process.supervisor import Supervisor
from server.stopping import stop_on_signals


async def main() -> bool:
    server = {"listen": "127.0.0.1:0", "fronts": 2, "grace": 20}
    config = Config.load(overrides={"server": server, "telemetry": {"log_format": "text"}})
    with stop_on_signals() as stop:
        supervisor = Supervisor(
            config,
            engines=1,
            engine_module="tests.server.scripted_engine_main",
            front_module="tests.server.scripted_front_main",
        )
        path = Path(sys.argv[1])
        try:
            return await supervisor.run(stop, bound=lambda address: port_file.write(path, address))
        finally:
            port_file.remove(path)


if __name__ == "__main__":
    logs.configure("text", "info", process="supervisor")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(0 if asyncio.run(main()) else 3)
