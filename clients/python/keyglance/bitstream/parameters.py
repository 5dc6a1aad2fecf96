"""Parameter sets of H.264 and HEVC by their numbers, parsed once however often a stream repeats them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from keyglance.bitstream.bits import HEADER_BYTES, BitstreamError
from keyglance.bitstream.facts import SequenceFacts, colour

S = TypeVar("S")
P = TypeVar("P")
T = TypeVar("T")
_REMEMBERED = 64  # units whose parsing is kept; a stream that changes them more often pays for it
_NEW = 16  # sequence parameter sets that one sample, or a record, may bring; parsing a hostile one takes milliseconds


class ParameterSets(Generic[S, P]):
    """Sequence parameter sets, and picture parameter sets each with the number of its sequence's.

    The parsers take an unescaped unit behind its NAL header and give (number, set) and (number, (sequence, set)).
    """

    def __init__(
        self, parse_sequence: Callable[[bytes], tuple[int, S]], parse_picture: Callable[[bytes], tuple[int, tuple[int, P]]]
    ) -> None:
        self._parse_sequence = parse_sequence
        self._parse_picture = parse_picture
        self._sequences: dict[int, S] = {}
        self._pictures: dict[int, tuple[int, P]] = {}
        self._known_sequences: dict[bytes, tuple[int, S]] = {}
        self._known_pictures: dict[bytes, tuple[int, tuple[int, P]]] = {}
        self._allowed = _NEW
        self.problem = ""  # of the last set that could not be read

    def begin(self) -> None:
        """A new sample begins."""
        self._allowed = _NEW

    @property
    def first(self) -> S | None:
        """The sequence parameter set that came first."""
        return next(iter(self._sequences.values()), None)

    def add_sequence(self, data: bytes) -> bool:
        """Takes a set, given unescaped; False where it is broken: then the one before it stays, as in a decoder."""
        if data[:HEADER_BYTES] not in self._known_sequences:
            if not self._allowed:
                self.problem = f"more than {_NEW} new sequence parameter sets at once"
                return False
            self._allowed -= 1
        return self._add("sequence", data, self._parse_sequence, self._known_sequences, self._sequences)

    def require_sequence(self, data: bytes) -> S:
        """Takes a set and gives it; BitstreamError where it is broken."""
        if not self.add_sequence(data):
            raise BitstreamError(self.problem)
        return self._known_sequences[data[:HEADER_BYTES]][1]

    def add_picture(self, data: bytes) -> bool:
        """The same for a picture parameter set."""
        return self._add("picture", data, self._parse_picture, self._known_pictures, self._pictures)

    def _add(
        self,
        name: str,
        data: bytes,
        parse: Callable[[bytes], tuple[int, T]],
        known: dict[bytes, tuple[int, T]],
        into: dict[int, T],
    ) -> bool:
        data = data[:HEADER_BYTES]
        if (parsed := known.get(data)) is None:
            try:
                parsed = parse(data)
            except BitstreamError as error:
                self.problem = f"a {name} parameter set that cannot be read: {error}"
                return False
            if len(known) >= _REMEMBERED:
                known.clear()
            known[data] = parsed
        into[parsed[0]] = parsed[1]
        return True

    def of_picture(self, number: int) -> tuple[S | None, P | None]:
        """The sets that a slice refers to by its picture parameter set; None for each that is missing."""
        sequence, picture = self._pictures.get(number, (-1, None))
        return self._sequences.get(sequence), picture


def with_transfer(facts: SequenceFacts, transfer: int | None, *, interlaced: bool | None) -> SequenceFacts:
    """The facts with the preferred transfer function of an SEI message (H.264, D.1.38; H.265, D.2.38), if it is a known one."""
    known = colour(transfer=2 if transfer is None else transfer).transfer
    described = facts.colour if known == 2 else replace(facts.colour, transfer=known)
    if described == facts.colour and interlaced == facts.interlaced:
        return facts
    return replace(facts, colour=described, interlaced=interlaced)
