from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.backends.fake import fake_manifest
from models.fusion import Segment, VideoLabel
from models.manifest import LabelSpec
from models.policy import DEFAULT_POLICY, Policy, PolicyError, Rule, Verdict
from server.degradation import Degradation, DegradationReason


@dataclass(frozen=True)
class Seen:
    frames: int = 16
    largest_gap: float = 5.0
    largest_gap_start: float = 2.0


def label(name: str, score: float) -> VideoLabel:
    return VideoLabel(name, "", score, 0.5, score >= 0.5, (Segment(1.0, 3.0, 2.5, score),) if score >= 0.5 else (), ())


POLICY = Policy(
    unseen=10.0,
    tolerate=frozenset({"SOFTWARE_FALLBACK"}),
    labels={"nsfw": Rule(block_at=0.9, review_at=0.5), "gun": Rule(review_at=0.4), "gore": Rule(block_at=0.8)},
)
CLEAN = {"nsfw": 0.1, "gun": 0.1, "gore": 0.1}


def judge(scores: dict[str, float] | None = None, *degradations: DegradationReason, seen: Seen = Seen()):
    labels = {name: label(name, score) for name, score in (CLEAN | (scores or {})).items()}
    return POLICY.judge(labels, [Degradation(reason, 1, "what happened") for reason in degradations], seen)


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ({}, Verdict.PASS),
        ({"nsfw": 0.49}, Verdict.PASS),
        ({"nsfw": 0.5}, Verdict.REVIEW),
        ({"nsfw": 0.9}, Verdict.BLOCK),
        ({"gun": 1.0}, Verdict.REVIEW),
        ({"gore": 0.79}, Verdict.PASS),
        ({"gore": 0.8}, Verdict.BLOCK),
        ({"something else": 1.0}, Verdict.PASS),
    ],
)
def test_scores_give_the_verdict(scores, verdict):
    judgement = judge(scores)
    assert judgement.verdict is verdict
    assert bool(judgement.reasons) == (verdict is not Verdict.PASS)


def test_reasons_name_rule_score_and_time_those_of_the_verdict_first():
    assert judge({"nsfw": 0.93, "gun": 0.41}).reasons == (
        "nsfw scores 0.930, best at 2.50 s, blocked from 0.9",
        "gun scores 0.410, to be reviewed from 0.4",
    )


@pytest.mark.parametrize("reason", list(DegradationReason))
def test_a_degradation_is_no_pass_unless_tolerated(reason):
    judgement = judge({}, reason)
    if reason is DegradationReason.SOFTWARE_FALLBACK:
        assert judgement.verdict is Verdict.PASS
    else:
        assert judgement.verdict is Verdict.REVIEW
        assert judgement.reasons == (f"{reason.name} is not tolerated: what happened",)


def test_a_degradation_does_not_soften_a_block():
    judgement = judge({"nsfw": 0.95}, DegradationReason.FRAME_DAMAGED)
    assert judgement.verdict is Verdict.BLOCK
    assert len(judgement.reasons) == 2


@pytest.mark.parametrize(("gap", "verdict"), [(10.0, Verdict.PASS), (10.0005, Verdict.PASS), (10.1, Verdict.REVIEW)])
def test_time_left_unseen_is_no_pass(gap, verdict):
    judgement = judge(seen=Seen(largest_gap=gap))
    assert judgement.verdict is verdict
    if verdict is Verdict.REVIEW:
        assert judgement.reasons == ("10.10 s from 2.00 s on were not seen, 10 s are tolerated",)


def test_nothing_looked_at_is_no_pass():
    assert judge(seen=Seen(frames=0, largest_gap=0.0)).reasons == ("no picture was looked at",)


def test_a_label_of_a_rule_that_no_model_looked_for_is_no_pass():
    judgement = POLICY.judge({name: label(name, 0.1) for name in ("nsfw", "gun")}, [], Seen())
    assert judgement.verdict is Verdict.REVIEW
    assert judgement.reasons == ("no model looked for gore",)


@given(scores=st.dictionaries(st.sampled_from(sorted(CLEAN)), st.floats(0, 1)), raised=st.sampled_from(sorted(CLEAN)))
def test_a_higher_score_never_gives_a_milder_verdict(scores, raised):
    assert judge(scores | {raised: 1.0}).verdict.value >= judge(scores).verdict.value


class TestFile:
    def write(self, folder: Path, text: str) -> Path:
        path = folder / "policy.toml"
        path.write_text(text, encoding="utf-8")
        return path

    def test_it_is_read(self, tmp_path):
        policy = Policy.load(self.write(tmp_path, 'unseen = 10\ntolerate = ["TRUNCATED"]\n[labels."a b"]\nblock_at = 1\n'))
        assert policy == Policy(unseen=10.0, tolerate=frozenset({"TRUNCATED"}), labels={"a b": Rule(block_at=1.0)})

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("unseen = ", "no TOML"),
            ("", "unseen is missing"),
            ("unseen = 0", "unseen: Input should be greater than 0, it is 0"),
            ("unseen = nan", "unseen: Input should be greater than 0"),
            ("unseen = true", "unseen: Input should be a valid number, it is True"),
            ("unseen = 1\nunseeen = 2", r"unknown setting 'unseeen', the nearest known is 'unseen' \(at unseeen\)"),
            ("unseen = 1\n[labels.x]", "labels.x: needs block_at, review_at or both"),
            ("unseen = 1\n[labels.x]\nblock_at = 1.1", "labels.x.block_at: Input should be less than or equal to 1, it is 1.1"),
            ("unseen = 1\n[labels.x]\nreview_at = 0", "labels.x.review_at: Input should be greater than 0, it is 0"),
            ("unseen = 1\n[labels.x]\nblock_at = '1'", "labels.x.block_at: Input should be a valid number, it is '1'"),
            ("unseen = 1\n[labels.x]\nblock_at = 0.5\nreview_at = 0.6", "review_at 0.6 lies above block_at 0.5"),
            ("unseen = 1\n[labels.x]\nblok_at = 0.5", "unknown setting 'blok_at', the nearest known is 'block_at'"),
            (
                "unseen = 1\ntolerate = ['FRAME_DAMAGE']",
                "unknown degradation 'FRAME_DAMAGE', the nearest known is 'FRAME_DAMAGED'",
            ),
        ],
    )
    def test_faults_are_named_with_the_file_and_what_is_allowed(self, tmp_path, text, message):
        path = self.write(tmp_path, text)
        with pytest.raises(PolicyError, match=message) as raised:
            Policy.load(path)
        assert all(line.startswith(f"policy {path}: ") for line in str(raised.value).splitlines())

    def test_a_file_that_is_not_there_or_no_text(self, tmp_path):
        with pytest.raises(PolicyError, match="No such file"):
            Policy.load(tmp_path / "none.toml")
        (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
        with pytest.raises(PolicyError, match="no TOML"):
            Policy.load(tmp_path / "bytes.toml")

    def test_the_digest_is_of_the_rules_not_of_their_notation(self, tmp_path):
        one = Policy.load(self.write(tmp_path, "unseen = 10\n[labels.a]\nblock_at = 0.5\n[labels.b]\nreview_at = 0.5"))
        two = Policy.load(
            self.write(tmp_path, "# b\nlabels.b.review_at = 5e-1\nlabels.a.block_at = 0.50\nunseen = 10.0\ntolerate = []")
        )
        three = Policy.load(self.write(tmp_path, "unseen = 10\n[labels.a]\nreview_at = 0.5\n[labels.b]\nreview_at = 0.5"))
        assert one.digest == two.digest != three.digest
        assert len(one.digest) == 64
        assert int(one.digest, 16)


class TestCheck:
    manifests = (fake_manifest("m", (LabelSpec("nsfw"), LabelSpec("revolver", "gun"), LabelSpec("gore"))),)

    def test_labels_and_parents_are_known(self):
        POLICY.check(self.manifests)

    def test_unknown_ones_are_told_with_the_nearest_known(self):
        policy = Policy(unseen=1.0, labels={"NSWF": Rule(review_at=0.5), "revolvers": Rule(review_at=0.5)})
        with pytest.raises(PolicyError) as raised:
            policy.check(self.manifests)
        assert str(raised.value).splitlines() == [
            "policy: unknown label 'NSWF', the nearest known is 'nsfw'",
            "policy: unknown label 'revolvers', the nearest known is 'revolver'",
        ]
        with pytest.raises(PolicyError, match="unknown label 'nsfw', none is known"):
            Policy(unseen=1.0, labels={"nsfw": Rule(review_at=0.5)}).check([])


def test_the_default_policy_can_be_read_and_fits_the_default_models():
    repository = pytest.importorskip("models.repository")
    policy = Policy.load()
    assert DEFAULT_POLICY.name == "policy.toml"
    entries = [repository.read_model(path.parent) for path in sorted(repository.ZOO.glob("*/model.toml"))]
    policy.check(entry.manifest for entry in entries if entry.manifest.default_on)
