"""The verdict's policy: from labels, degradations and coverage to pass, review or block, by rules in a small TOML file.

```toml
unseen = 10.0                     # the largest time without a picture looked at that a pass may have, in seconds
tolerate = ["SOFTWARE_FALLBACK"]  # degradations that a pass may have, by their names in the API

[labels.nsfw]                     # a label of any model, or the parent of labels
block_at = 0.9                    # from this score on the video is blocked, 0 (excluded) to 1
review_at = 0.5                   # from this score on a person should look; at most block_at
```
"""

from __future__ import annotations

import difflib
import enum
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from models.fusion import VideoLabel
from models.manifest import Manifest
from server.degradation import Degradation, DegradationReason

#: The policy that comes with Keyglance.
DEFAULT_POLICY = Path(__file__).with_name("policy.toml")

#: A gap is tolerated up to this many seconds over `unseen`: times are rounded to a track's ticks.
_ROUNDING = 1e-3


class PolicyError(ValueError):
    """A policy file that cannot be used; the message has one line for each fault."""


class Verdict(enum.Enum):
    """As in the API, by number."""

    PASS = 1
    REVIEW = 2
    BLOCK = 3


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and one sentence for each rule that spoke against a pass, those of the verdict first."""

    verdict: Verdict
    reasons: tuple[str, ...]


class SupportsCoverage(Protocol):
    """How much of a video was seen: pictures, the largest gap between them and where it begins, in seconds."""

    @property
    def frames(self) -> int: ...  # noqa: D102

    @property
    def largest_gap(self) -> float: ...  # noqa: D102

    @property
    def largest_gap_start(self) -> float: ...  # noqa: D102


_Score = Annotated[float, Field(gt=0, le=1, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Rule(_Strict):
    """The scores from which one label blocks a video or sends it to a person."""

    block_at: _Score | None = None
    review_at: _Score | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.block_at is None and self.review_at is None:
            raise ValueError("needs block_at, review_at or both")
        if self.block_at is not None and self.review_at is not None and self.review_at > self.block_at:
            raise ValueError(f"review_at {self.review_at:g} lies above block_at {self.block_at:g}")
        return self


class Policy(_Strict):
    """Rules for a verdict. A pass needs every label of the rules to have been looked for, and nothing untold left unseen."""

    unseen: float = Field(gt=0, strict=True)
    tolerate: frozenset[str] = frozenset()
    labels: Mapping[str, Rule] = Field(default_factory=dict)

    @field_validator("tolerate")
    @classmethod
    def _known_reasons(cls, names: frozenset[str]) -> frozenset[str]:
        known = [reason.name for reason in DegradationReason]
        for name in sorted(names.difference(known)):
            raise ValueError(_unknown("degradation", name, known))
        return names

    @classmethod
    def load(cls, path: Path = DEFAULT_POLICY) -> Policy:
        """Reads a policy file. Raises `PolicyError`."""
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
            return cls.model_validate(values)
        except OSError as error:
            raise PolicyError(f"policy {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise PolicyError(f"policy {path}: no TOML: {error}") from None
        except ValidationError as error:
            raise PolicyError("\n".join(f"policy {path}: {_line(fault)}" for fault in error.errors(include_url=False))) from None

    def check(self, manifests: Iterable[Manifest]) -> None:
        """Raises `PolicyError` for rules about labels that are neither given by a model nor the parent of one that is."""
        known = {name for manifest in manifests for label in manifest.labels for name in (label.name, label.parent) if name}
        faults = [_unknown("label", name, known) for name in sorted(self.labels) if name not in known]
        if faults:
            raise PolicyError("\n".join(f"policy: {fault}" for fault in faults))

    @property
    def digest(self) -> str:
        """SHA-256, hexadecimal, of the rules in a canonical form: comments, order and notation of the file do not count."""
        canonical = {
            "unseen": self.unseen,
            "tolerate": sorted(self.tolerate),
            "labels": {name: [rule.block_at, rule.review_at] for name, rule in self.labels.items()},
        }
        return hashlib.sha256(json.dumps(canonical, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def judge(
        self, labels: Mapping[str, VideoLabel], degradations: Iterable[Degradation], coverage: SupportsCoverage
    ) -> Judgement:
        """The verdict. `labels` must be all that models looked for, by name, whatever the caller wants to be shown."""
        block: list[str] = []
        review: list[str] = []
        for name, rule in sorted(self.labels.items()):
            label = labels.get(name)
            if label is None:
                review.append(f"no model looked for {name}")
            elif rule.block_at is not None and label.score >= rule.block_at:
                block.append(f"{_scored(label)}, blocked from {rule.block_at:g}")
            elif rule.review_at is not None and label.score >= rule.review_at:
                review.append(f"{_scored(label)}, to be reviewed from {rule.review_at:g}")
        if not coverage.frames:
            review.append("no picture was looked at")
        if coverage.largest_gap > self.unseen + _ROUNDING:
            gap, begin = coverage.largest_gap, coverage.largest_gap_start
            review.append(f"{gap:.2f} s from {begin:.2f} s on were not seen, {self.unseen:g} s are tolerated")
        review += [
            f"{item.reason.name} is not tolerated: {item.detail}"
            for item in sorted(degradations, key=lambda item: item.reason.value)
            if item.reason.name not in self.tolerate
        ]
        verdict = Verdict.BLOCK if block else Verdict.REVIEW if review else Verdict.PASS
        return Judgement(verdict, tuple(block + review))


def _scored(label: VideoLabel) -> str:
    best = max(label.segments, key=lambda segment: segment.score, default=None)
    return f"{label.name} scores {label.score:.3f}" + (f", best at {best.peak:.2f} s" if best else "")


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    ordered = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in ordered}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.0)
    return f"unknown {what} {name!r}" + (f", the nearest known is {lowered[near[0]]!r}" if near else ", none is known")


def _line(fault: Mapping[str, object]) -> str:
    """One of pydantic's faults as a line: where, what, and the value."""
    place = ".".join(str(part) for part in fault["loc"])  # type: ignore[attr-defined]
    match fault["type"]:
        case "extra_forbidden":
            fields = Rule.model_fields if place.startswith("labels.") else Policy.model_fields
            return f"{_unknown('setting', place.rpartition('.')[2], fields)} (at {place})"
        case "missing":
            return f"{place} is missing"
        case "value_error":
            return f"{place}: {str(fault['msg']).removeprefix('Value error, ')}"
    return f"{place}: {fault['msg']}, it is {fault['input']!r}"
