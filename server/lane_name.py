"""The lanes that there are."""

from __future__ import annotations

import enum


class LaneName(enum.StrEnum):
    """What calls are divided by: those that a GPU leaves to software take none of the others' places."""

    MAIN = "main"
    SOFTWARE = "software"
