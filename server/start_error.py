"""The error of a server that cannot start."""

from __future__ import annotations


class StartError(Exception):
    """The server cannot start; the message says in one line what is missing or in the way."""
