"""A front whose calls hand one job to the engine: `request_id` is how long it takes there, in milliseconds.

The answer's `request_id` is the number of pictures, its `trace_id` this process's id.
"""

import os

from keyglance.v1.keyglance_pb2 import LabelRequest, LabelResponse
from keyglance.v1.keyglance_pb2_grpc import ShortVideoLabelerServicer
from server.call import current_call
from server.config import Config
from server.engine import Engine
from server.engine_process.child import Child, Settings, run_child
from server.engine_process.front_main import run_front
from server.lifecycle import Parts
from server.telemetry import Telemetry
from tests.server.engine_fakes import job


class Servicer(ShortVideoLabelerServicer):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def Label(self, request: LabelRequest, context: object) -> LabelResponse:
        work = job(3, thumbnail_size=int(request.request_id), deadline=current_call().deadline.at)
        with work.packets:
            result = await self._engine.run(work)
        for timing in result.timings:
            current_call().steps.add(timing, links=result.batches)
        return LabelResponse(request_id=str(len(result.frames)), trace_id=str(os.getpid()))


def make_front(config: Config, telemetry: Telemetry, engine: Engine) -> Parts:
    return Parts(Servicer(engine), engine)


async def main(child: Child, settings: Settings) -> None:
    await run_front(child, settings, make_front)


if __name__ == "__main__":
    run_child(main)
