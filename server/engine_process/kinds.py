"""The kinds of frames on the two sorts of connections."""

from __future__ import annotations

import enum


class EngineKind(enum.IntEnum):
    """Between a front and an engine. The frame's number is the job's, which its front counts; 0 where no job is meant."""

    # From the front.
    JOB = 1  # a job, and its packets' descriptor
    CANCEL = 2  # nobody waits for that job any more
    KEEP = 3  # the trace of the call whose root span has the frame's number as its id is kept
    # From the engine.
    INFO = 16  # what the engine is; first of all
    READY = 17  # it takes jobs
    DECODERS = 18  # how its decoders stand, when that has changed
    ANSWER = 19
    FAILURE = 20


class ControlKind(enum.IntEnum):
    """Between the supervisor and one of its processes."""

    # From the supervisor.
    SETTINGS = 1  # what the process needs to know, once, first of all (JSON); to a front with the memory that all fronts share
    PEER = 2  # a connection's descriptor: to the engine or the front of that number
    PING = 3
    END = 4  # finish what you do, take nothing new, and end
    # From the process.
    READY = 16  # a front is bound, an engine is warm; from then on it answers pings
    PONG = 17  # with the ping's number
    FAILED = 18  # it cannot go on: the reason as text; then it ends
