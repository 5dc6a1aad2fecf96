"""An engine process whose jobs take as many milliseconds as their thumbnails would have pixels.

1001 breaks the engine for good; 1002 and 1003 block its event loop for a minute, or for three seconds.

`KEYGLANCE_TEST_ENGINE` has it fail at its start: `refuse` with an error of ours, `crash` with a signal, `slow` never gets ready;
or be another than before: `others` has fewer models.
"""

import asyncio
import os
import signal
import time
from dataclasses import replace

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Tracer

from server.config import Config
from server.engine import EngineJob, EngineResult
from server.engine_process.child import Child, Settings, run_child
from server.engine_process.engine_main import run_engine
from server.start_error import StartError
from server.telemetry import Telemetry
from tests.server.engine_fakes import MANIFESTS, ScriptedEngine


class Engine(ScriptedEngine):
    tracer: Tracer

    async def run(self, job: EngineJob) -> EngineResult:
        """Each job is a batch of its own."""
        caller = trace.get_current_span().get_span_context()
        links = [Link(caller)] if caller.is_valid else []
        batch = self.tracer.start_span("infer_batch", context=Context(), links=links)
        try:
            return replace(await super().run(job), batches=(batch.get_span_context(),))
        finally:
            batch.end()

    async def start(self) -> None:
        match os.environ.get("KEYGLANCE_TEST_ENGINE"):
            case "refuse":
                raise StartError("no models for this engine")
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "slow":
                await asyncio.sleep(60)


async def main(child: Child, settings: Settings) -> None:
    fewer = os.environ.get("KEYGLANCE_TEST_ENGINE") == "others"
    engine = Engine(manifests=MANIFESTS[:1] if fewer else MANIFESTS)

    async def work(job: EngineJob) -> None:
        if job.thumbnail_size == 1001:
            engine.healthy = False
        if job.thumbnail_size in (1002, 1003):
            time.sleep(60 if job.thumbnail_size == 1002 else 3)  # noqa: ASYNC251
        await asyncio.sleep(job.thumbnail_size / 1e3)

    engine.work = work

    def make(config: Config, telemetry: Telemetry) -> Engine:
        engine.tracer = telemetry.tracer
        return engine

    await run_engine(child, settings, make)


if __name__ == "__main__":
    run_child(main)
