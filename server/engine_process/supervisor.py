"""The supervisor: starts fronts and engines, connects them, starts again what dies, and ends all of them in order."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from server.config import Config
from server.engine_process.child import Settings
from server.engine_process.listening import ReservedAddress
from server.engine_process.mps import MpsDaemon
from server.engine_process.supervised import SupervisedProcess
from server.engine_process.wire import pair
from server.front_share import FrontBoard
from server.start_error import StartError

_log = logging.getLogger(__name__)

ENGINE_MODULE = "server.engine_process.engine_main"
FRONT_MODULE = "server.engine_process.front_main"

_SETTLED = 30.0  # seconds that a process must have lived to be started again at once when it dies
_FIRST_DELAY, _LONGEST_DELAY = 0.25, 30.0  # seconds before another start of one that lived less
_FRONT_MARGIN = 20.0  # seconds beyond the grace in which a front ends: calls cut short, last bytes, workers, telemetry
_ENGINE_END = 20.0  # seconds in which an engine ends


@dataclass(slots=True, eq=False)
class _Place:
    """One front or engine, whichever process it is at the moment."""

    name: str
    number: int
    module: str
    settings: Settings
    process: SupervisedProcess | None = None
    was_ready: asyncio.Event = field(default_factory=asyncio.Event)
    restarts: int = 0

    @property
    def live(self) -> SupervisedProcess | None:
        return self.process if self.process is not None and self.process.alive else None


@dataclass(frozen=True, slots=True)
class PlaceState:
    """How one kind of process stands: how many live, how many there should be, how often one was started again."""

    kind: str
    alive: int
    wanted: int
    restarts: int


class Supervisor:
    """`config.server.fronts` fronts on one address and as many `engines`, until it is told to stop.

    `adapt` gets each process's name and configuration, and gives the one that it starts with. Raises `StartError` for an address
    that cannot be had.
    """

    def __init__(
        self,
        config: Config,
        *,
        engines: int,
        adapt: Callable[[str, Config], Config] = lambda _, config: config,
        engine_module: str = ENGINE_MODULE,
        front_module: str = FRONT_MODULE,
    ) -> None:
        self._config = config
        self._reserved = ReservedAddress(config.server.listen, shared=config.server.reuse_port)
        self.address = self._reserved.address
        front = front_config(config, self.address)

        def place(kind: str, number: int, module: str, config: Config) -> _Place:
            name = f"{kind}-{number}"
            return _Place(name, number, module, Settings(adapt(name, config), engines, number))

        self._engines = [place("engine", number, engine_module, engine_config(config, number)) for number in range(engines)]
        self._fronts = [place("front", number, front_module, front) for number in range(config.server.fronts)]
        self._board = FrontBoard.allocate(fronts=len(self._fronts), engines=engines)
        self._mps = MpsDaemon() if config.server.mps else None

    async def run(self, stop: asyncio.Event, *, bound: Callable[[str], None] = lambda _: None) -> bool:
        """Runs everything until `stop` is set, then drains: fronts first, then engines. `bound` gets the address once all listen.

        Returns whether everything ended by itself and in time. Raises `StartError` where a process cannot start the first time.
        """
        keepers = [asyncio.create_task(self._keep(place), name=f"keep {place.name}") for place in self._places()]
        telling = asyncio.create_task(self._tell_when_bound(bound), name="wait for the fronts")
        stopping = asyncio.create_task(stop.wait(), name="wait for the signal")
        try:
            await asyncio.wait((*keepers, stopping, telling), return_when=asyncio.FIRST_COMPLETED)
            while not stopping.done() and not any(keeper.done() for keeper in keepers):  # the fronts were bound
                telling.result()
                await asyncio.wait((*keepers, stopping), return_when=asyncio.FIRST_COMPLETED)
            for keeper in keepers:
                if keeper.done():
                    keeper.result()
            _log.info("ending: fronts first, then engines")
            return await self._end(keepers)
        finally:
            for task in (*keepers, telling, stopping):
                task.cancel()
            await asyncio.gather(*keepers, telling, stopping, return_exceptions=True)
            for place in self._places():
                if place.process is not None:
                    place.process.kill("the server ends")
                    await place.process.gone(_ENGINE_END)
            if self._mps is not None:
                await self._mps.close()
            self._reserved.close()
            self._board.close()

    def state(self) -> tuple[PlaceState, ...]:
        """How fronts and engines stand, and MPS where engines have it."""
        kinds = (("front", self._fronts), ("engine", self._engines))
        places = [
            PlaceState(kind, sum(one.live is not None for one in of_kind), len(of_kind), sum(one.restarts for one in of_kind))
            for kind, of_kind in kinds
        ]
        return (*places, *([] if self._mps is None else [PlaceState("mps", int(self._mps.alive), 1, self._mps.restarts)]))

    def names(self) -> tuple[str, ...]:
        """The names of the processes that live now."""
        return tuple(place.name for place in self._places() if place.live is not None)

    def __repr__(self) -> str:
        shown = [repr(place.process) for place in self._places()] + ([] if self._mps is None else [repr(self._mps)])
        return f"<Supervisor {self.address} {', '.join(shown)}>"

    def _places(self) -> Iterator[_Place]:
        yield from self._engines
        yield from self._fronts

    async def _keep(self, place: _Place) -> None:
        """Has the place filled, process after process."""
        failures = 0
        while True:
            is_front = place in self._fronts
            process = place.process = SupervisedProcess(
                place.name,
                place.module,
                place.settings,
                heartbeat=self._config.server.heartbeat,
                board=self._board.fd if is_front else None,
            )
            begin = time.monotonic()
            how = await self._live(place, process)
            process.close()
            if is_front:
                self._board.forget(place.number)
            if not place.was_ready.is_set():
                raise StartError(process.failure or f"{place.name} {how} before it was ready")
            failures = 0 if time.monotonic() - begin > _SETTLED else failures + 1
            delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** (failures - 1)) if failures else 0.0
            _log.error("%s %s; it is started again in %g s", place.name, how, delay)
            await asyncio.sleep(delay)
            place.restarts += 1

    async def _live(self, place: _Place, process: SupervisedProcess) -> str:
        """The life of one process; says how it ended."""
        try:
            await process.start(await self._environment(place))
        except StartError as error:
            process.failure = str(error)
            return f"could not be started: {error}"
        except OSError as error:
            return f"could not be started: {error}"
        self._introduce(place)
        noting = asyncio.create_task(self._note_ready(place, process), name=f"wait for {place.name}")
        try:
            return await process.watch()
        finally:
            noting.cancel()

    async def _environment(self, place: _Place) -> Mapping[str, str]:
        """What a process needs beside the supervisor's own, once that is there."""
        if self._mps is None or place in self._fronts:
            return {}
        await self._mps.ensure()
        return self._mps.environment

    async def _note_ready(self, place: _Place, process: SupervisedProcess) -> None:
        await process.ready.wait()
        place.was_ready.set()
        if place.restarts:
            _log.info("%s is there again, process %d", place.name, process.pid)

    def _introduce(self, place: _Place) -> None:
        """Connects a new process with all of the other kind. What is lost of it is connected anew with the next one."""
        is_front = place in self._fronts
        for other in self._engines if is_front else self._fronts:
            front, engine = (place, other) if is_front else (other, place)
            if front.live is not None and engine.live is not None:
                ours, theirs = pair()
                front.live.connect(engine.number, ours)
                engine.live.connect(front.number, theirs)

    async def _tell_when_bound(self, bound: Callable[[str], None]) -> None:
        for place in self._fronts:
            await place.was_ready.wait()
        bound(self.address)
        _log.info("listening on %s, fronts: %d, engines: %d", self.address, len(self._fronts), len(self._engines))

    async def _end(self, keepers: list[asyncio.Task[None]]) -> bool:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        in_time = True
        for places, within in ((self._fronts, self._config.server.grace + _FRONT_MARGIN), (self._engines, _ENGINE_END)):
            live = [place.process for place in places if place.process is not None]
            for process in live:
                process.end()
            in_time = all(await asyncio.gather(*(process.gone(within) for process in live))) and in_time
        _log.info("ended")
        return in_time


def engine_config(config: Config, number: int) -> Config:
    """The configuration of an engine process: which GPU it has, alone or with its neighbours."""
    gpu = config.gpu.model_copy(update={"index": config.gpu.index + number // config.server.engines_per_gpu})
    return config.model_copy(update={"gpu": gpu})


def front_config(config: Config, address: str) -> Config:
    """The configuration of a front: its share of the memory for requests, and the address that all share."""
    server = config.server.model_copy(
        update={"listen": address, "reuse_port": config.server.reuse_port or not address.startswith("unix:")}
    )
    budget = max(config.server.largest_message, config.receive.budget // config.server.fronts)
    receive = config.receive.model_copy(update={"budget": type(config.receive.budget)(budget)})
    return config.model_copy(update={"server": server, "receive": receive})


def engine_count(config: Config) -> int:
    """How many engines there are to be: as many as `server.engines` says, or `server.engines_per_gpu`, one without a GPU."""
    if config.server.engines:
        return config.server.engines
    if config.engine.device == "cpu" or importlib.util.find_spec("cupy") is None:
        return 1
    return max(1, (_gpus() - config.gpu.index) * config.server.engines_per_gpu)


_COUNT = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
print(count.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0)
"""


def _gpus() -> int:
    """How many GPUs CUDA shows (CUDA_VISIBLE_DEVICES counts); 0 without a driver. Asked elsewhere, to keep CUDA out of here."""
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        answer = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, timeout=60, check=True)
        return int(answer.stdout)
    return 0
