"""Heads on synthetic tensors: known answers, and properties that hold for any tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from models.heads import HEADS, Head, make_head
from models.manifest import LabelSpec, Manifest
from models.result import FrameResult
from models.spec import Fit, Geometry, InputSpec, Normalisation, Placement
from tests.models import heads_reference

INPUTS = InputSpec("x", Geometry(((32, 64),), Fit.LETTERBOX), Normalisation())
WHOLE = Placement(left=0, top=0, width=64, height=32)


def manifest(
    head: str, outputs: tuple[str, ...], labels: tuple[LabelSpec, ...], options: Mapping[str, float] | None = None
) -> Manifest:
    return Manifest("m", "1", "0" * 64, "MIT", "test", "onnx", head, INPUTS, outputs, labels, options=options or {})


def classifier(*labels: LabelSpec, softmax: int = 0) -> Head:
    return make_head(manifest("classification", ("y",), labels, {"softmax": softmax}))


def faces(**options: float) -> Head:
    return make_head(manifest("centerface", ("heat", "scale", "offset"), (LabelSpec("face"),), options))


def text(**options: float) -> Head:
    return make_head(manifest("text_map", ("map",), (LabelSpec("text on screen"),), options))


def face_maps(*found: tuple[int, int, float, float, float], size: tuple[int, int] = (8, 16)) -> dict[str, NDArray[np.float32]]:
    """Maps with faces of (row, column, score, height, width in canvas pixels)."""
    heat = np.full((1, *size), 0.01, np.float32)
    scale, offset = np.zeros((2, *size), np.float32), np.zeros((2, *size), np.float32)
    for row, column, score, height, width in found:
        heat[0, row, column] = score
        scale[:, row, column] = np.log([height / 4, width / 4])
    return {"heat": heat, "scale": scale, "offset": offset}


def assert_sound(result: FrameResult, labels: set[str]) -> None:
    assert set(result.scores) == labels
    for score in result.scores.values():
        assert 0 <= score <= 1
    for region in result.regions:
        assert region.label in labels
        assert 0 <= region.score <= 1
        assert region.width > 0
        assert region.height > 0
        assert min(region.x, region.y) >= 0
        assert region.x + region.width <= 1 + 1e-9
        assert region.y + region.height <= 1 + 1e-9


# --- classification


def test_a_label_is_the_sum_of_its_classes() -> None:
    head = classifier(LabelSpec("both", classes=(0, 2)), LabelSpec("one", classes=(1,)), LabelSpec("all", classes=(2, 1, 0)))
    scores = head.read({"y": np.array([0.25, 0.5, 0.25], np.float32)}, WHOLE).scores
    assert scores == pytest.approx({"both": 0.5, "one": 0.5, "all": 1.0})


def test_logits_become_probabilities() -> None:
    head = classifier(LabelSpec("a", classes=(0,)), LabelSpec("b", classes=(1,)), softmax=1)
    scores = head.read({"y": np.array([1000.0, 1000.0 + np.log(3)], np.float32)}, WHOLE).scores
    assert scores == pytest.approx({"a": 0.25, "b": 0.75}, abs=1e-4)


@given(arrays(np.float32, 12, elements=st.floats(-1e4, 1e4, width=32)))
def test_any_logits_give_scores(logits: NDArray[np.float32]) -> None:
    labels = tuple(LabelSpec(str(number), classes=(number,)) for number in range(12))
    result = classifier(*labels, LabelSpec("all", classes=tuple(range(12))), softmax=1).read({"y": logits}, WHOLE)
    assert_sound(result, {*map(str, range(12)), "all"})
    assert result.scores["all"] == pytest.approx(1)
    assert result.scores[str(np.argmax(logits))] == max(score for name, score in result.scores.items() if name != "all")


def test_a_class_that_the_output_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match="has 3 classes, the labels name class 7"):
        classifier(LabelSpec("a", classes=(7,))).read({"y": np.zeros(3, np.float32)}, WHOLE)
    with pytest.raises(ValueError, match="label without classes"):
        classifier(LabelSpec("a"))


# --- faces


def test_a_face_is_where_the_map_says() -> None:
    result = faces().read(face_maps((3, 5, 0.9, 16, 8)), WHOLE)
    assert result.scores == {"face": pytest.approx(0.9)}
    (face,) = result.regions
    # Centre at (5.5 * 4, 3.5 * 4) = (22, 14) of 64 x 32 pixels.
    assert (face.x * 64, face.y * 32, face.width * 64, face.height * 32) == pytest.approx((18, 6, 8, 16))


def test_offsets_move_the_face_by_cells() -> None:
    maps = face_maps((3, 5, 0.9, 8, 8))
    maps["offset"][:, 3, 5] = (0.5, -0.25)  # down, right
    (face,) = faces().read(maps, WHOLE).regions
    assert (face.x * 64, face.y * 32) == pytest.approx((18 - 1, 10 + 2))


def test_a_letterboxed_picture_gets_its_own_shares() -> None:
    placement = Placement(left=16, top=0, width=32, height=32)
    (face,) = faces().read(face_maps((3, 7, 0.9, 8, 8)), placement).regions
    assert (face.x * 32, face.y * 32, face.width * 32, face.height * 32) == pytest.approx((30 - 4 - 16, 14 - 4, 8, 8))


def test_a_face_in_the_margin_is_none() -> None:
    result = faces().read(face_maps((3, 1, 0.9, 8, 8)), Placement(left=16, top=0, width=32, height=32))
    assert result.regions == ()
    assert result.scores["face"] == pytest.approx(0.01)


def test_a_face_over_the_edge_is_cut() -> None:
    (face,) = faces().read(face_maps((0, 0, 0.9, 16, 16)), WHOLE).regions
    assert (face.x, face.y, face.width * 64, face.height * 32) == pytest.approx((0, 0, 10, 10))


def test_the_better_of_two_that_overlap_stays() -> None:
    maps = face_maps((3, 5, 0.8, 16, 16), (3, 6, 0.9, 16, 16), (3, 13, 0.7, 8, 8))
    assert [round(face.score, 2) for face in faces().read(maps, WHOLE).regions] == [0.9, 0.7]
    assert [round(face.score, 2) for face in faces(overlap=0.99).read(maps, WHOLE).regions] == [0.9, 0.8, 0.7]


def test_a_crowd_is_bounded_and_quick() -> None:
    size = (72, 128)
    maps = {
        "heat": np.full((1, *size), 0.9, np.float32),
        "scale": np.zeros((2, *size), np.float32),
        "offset": np.zeros((2, *size), np.float32),
    }
    assert len(faces().read(maps, Placement(0, 0, 512, 288)).regions) == 2000


finite = st.floats(-100, 100, width=32)


@given(
    arrays(np.float32, (1, 4, 8), elements=st.floats(0, 1, width=32)),
    arrays(np.float32, (2, 4, 8), elements=finite),
    arrays(np.float32, (2, 4, 8), elements=finite),
    st.sampled_from([Placement(0, 0, 32, 16), Placement(8, 0, 16, 16), Placement(-16, -8, 64, 32), Placement(0, 7, 32, 1)]),
)
def test_any_maps_give_faces_inside_the_picture(
    heat: NDArray[np.float32], scale: NDArray[np.float32], offset: NDArray[np.float32], placement: Placement
) -> None:
    result = faces(box_threshold=0.3).read({"heat": heat, "scale": scale, "offset": offset}, placement)
    assert_sound(result, {"face"})
    assert [face.score for face in result.regions] == sorted((face.score for face in result.regions), reverse=True)


# --- text


def text_map(*boxes: tuple[int, int, int, int], probability: float = 0.9) -> dict[str, NDArray[np.float32]]:
    """A map of 32 x 64 with boxes of (top, left, height, width)."""
    found = np.zeros((1, 32, 64), np.float32)
    for top, left, height, width in boxes:
        found[0, top : top + height, left : left + width] = probability
    return {"map": found}


def test_coverage_is_the_share_of_the_picture() -> None:
    result = text(half_coverage=0.125, grow=0).read(text_map((8, 16, 8, 32)), WHOLE)
    assert result.scores == {"text on screen": pytest.approx(0.5)}  # 256 of 2,048 pixels are 0.125
    (region,) = result.regions
    assert (region.x * 64, region.y * 32, region.width * 64, region.height * 32) == pytest.approx((16, 8, 32, 8))
    assert region.score == pytest.approx(0.9)


def test_only_the_picture_counts() -> None:
    placement = Placement(left=16, top=0, width=32, height=32)
    result = text(half_coverage=0.125, grow=0).read(text_map((0, 0, 32, 16), (8, 16, 4, 32)), placement)
    assert result.scores["text on screen"] == pytest.approx(0.5)  # 128 of the picture's 1,024; the margin's text is none
    (region,) = result.regions
    assert (region.x, region.width) == pytest.approx((0, 1))


def test_regions_grow_but_stay_in_the_picture() -> None:
    (region,) = text(grow=1.5).read(text_map((1, 0, 8, 32)), WHOLE).regions
    margin = 256 * 1.5 / (2 * (8 + 32))
    assert (region.x, region.y, region.width * 64) == pytest.approx((0, 0, 32 + margin))


def test_specks_and_doubtful_texts_are_none() -> None:
    head = text(threshold=0.3, box_threshold=0.6, least_pixels=16)
    assert head.read(text_map((8, 16, 3, 5)), WHOLE) == FrameResult({"text on screen": 0.0})
    assert head.read(text_map((8, 16, 8, 32), probability=0.5), WHOLE) == FrameResult({"text on screen": 0.0})


def test_the_largest_texts_are_the_regions() -> None:
    result = text(most_regions=1, grow=0).read(text_map((0, 0, 4, 8), (16, 16, 8, 16)), WHOLE)
    assert [(region.x * 64, region.y * 32) for region in result.regions] == [(16, 16)]


def test_more_text_scores_higher() -> None:
    scores = [text().read(text_map((0, 0, rows, 64)), WHOLE).scores["text on screen"] for rows in (1, 2, 4, 8, 16, 32)]
    assert scores == sorted(scores)
    assert scores[-1] < 1


def test_a_map_of_another_scale() -> None:
    result = text(stride=4, least_pixels=1, grow=0).read({"map": text_map((2, 4, 2, 8))["map"]}, Placement(0, 0, 256, 128))
    (region,) = result.regions
    assert (region.x * 256, region.width * 256) == pytest.approx((16, 32))


@given(
    arrays(np.float32, (1, 12, 20), elements=st.floats(0, 1, width=32)),
    st.sampled_from([Placement(0, 0, 20, 12), Placement(4, 0, 12, 12), Placement(-10, -6, 40, 24), Placement(0, 5.5, 20, 1)]),
)
def test_any_map_gives_texts_inside_the_picture(found: NDArray[np.float32], placement: Placement) -> None:
    assert_sound(text(least_pixels=1, box_threshold=0).read({"map": found}, placement), {"text on screen"})


# --- things and their boxes


def yolo(*labels: LabelSpec, **options: float) -> Head:
    return make_head(manifest("yolo", ("y",), labels, options))


def detections(*found: tuple[float, float, float, float, tuple[float, ...]]) -> dict[str, NDArray[np.float32]]:
    """Columns of (centre x, centre y, width, height, scores of the classes)."""
    return {"y": np.array([(*box, *scores) for *box, scores in found], np.float32).T}


def test_a_thing_is_where_its_box_says() -> None:
    head = yolo(LabelSpec("first", classes=(0,)), LabelSpec("others", classes=(1, 2)))
    maps = detections((24, 16, 16, 8, (0.9, 0.1, 0.0)), (25, 16, 16, 8, (0.8, 0.0, 0.0)), (44, 8, 8, 8, (0.0, 0.2, 0.7)))
    result = head.read(maps, Placement(left=8, top=0, width=48, height=32))
    assert result.scores == pytest.approx({"first": 0.9, "others": 0.7})
    first, other = result.regions
    assert (first.label, other.label) == ("first", "others")
    assert (first.x * 48, first.y * 32, first.width * 48, first.height * 32) == pytest.approx((8, 12, 16, 8))
    assert (other.x * 48, other.y * 32) == pytest.approx((32, 4))


def test_a_thing_in_the_margin_is_none() -> None:
    head = yolo(LabelSpec("first", classes=(0,)))
    result = head.read(detections((4, 16, 8, 8, (0.9,))), Placement(left=8, top=0, width=48, height=32))
    assert result == FrameResult({"first": 0.0})


def test_a_class_that_the_detector_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 12 rows expected"):
        yolo(LabelSpec("a", classes=(7,))).read(detections((4, 16, 8, 8, (0.9,))), WHOLE)
    with pytest.raises(ValueError, match="label without classes"):
        yolo(LabelSpec("a"))


@example(np.full((4, 9), -1, np.float32), np.ones((3, 9), np.float32), Placement(-16, -8, 64, 32))  # sides of less than nothing
@given(
    arrays(np.float32, (4, 9), elements=finite),
    arrays(np.float32, (3, 9), elements=st.floats(0, 1, width=32)),
    st.sampled_from([WHOLE, Placement(8, 0, 16, 16), Placement(-16, -8, 64, 32), Placement(0, 7, 32, 1)]),
)
def test_any_detections_give_boxes_inside_the_picture(
    boxes: NDArray[np.float32], scores: NDArray[np.float32], placement: Placement
) -> None:
    head = yolo(LabelSpec("a", classes=(0,)), LabelSpec("b", classes=(1, 2)))
    assert_sound(head.read({"y": np.concatenate([boxes, scores])}, placement), {"a", "b"})


# --- batches

PLACEMENTS = [WHOLE, Placement(16, 0, 32, 32), Placement(-16, -8, 96, 48), Placement(0, 5.5, 64, 1), Placement(0, 30, 64, 9)]
BATCHED = {
    "classification": manifest(
        "classification",
        ("y",),
        (LabelSpec("one", classes=(3,)), LabelSpec("two", classes=(1, 4)), LabelSpec("same", classes=(3,))),
        {"softmax": 1},
    ),
    "probabilities": manifest("classification", ("y",), (LabelSpec("one", classes=(3, 0)),), {"softmax": 0}),
    "centerface": manifest("centerface", ("h", "s", "o"), (LabelSpec("face"),), {"box_threshold": 0.4, "overlap": 0.3}),
    "text_map": manifest(
        "text_map",
        ("m",),
        (LabelSpec("text"),),
        {
            "stride": 2.0,
            "threshold": 0.3,
            "box_threshold": 0.45,
            "least_pixels": 2,
            "half_coverage": 0.01,
            "grow": 1.5,
            "most_regions": 5,
        },
    ),
    "yolo": manifest(
        "yolo",
        ("y",),
        (LabelSpec("a", classes=(0,)), LabelSpec("b", classes=(1, 2))),
        {"box_threshold": 0.3, "overlap": 0.45},
    ),
}


def random_outputs(kind: str, rows: int, seed: int) -> dict[str, NDArray[np.float32]]:
    """Outputs of a batch for `BATCHED`: pictures with nothing, with a little, and with a crowd."""
    rng = np.random.default_rng(seed)
    busy = rng.choice([0.2, 0.6, 1.0], (rows, 1, 1))

    def uniform(*shape: int) -> NDArray[np.float64]:
        return rng.random((rows, *shape))

    match kind:
        case "classification":
            found = {"y": rng.normal(0, 5, (rows, 6))}
        case "probabilities":
            found = {"y": uniform(6)}
        case "centerface":
            found = {"h": uniform(1, 8, 16) * busy[..., None], "s": uniform(2, 8, 16) * 3, "o": uniform(2, 8, 16) * 2 - 1}
        case "text_map":
            coarse = (uniform(1, 8, 16) * busy[..., None]).repeat(2, axis=2).repeat(2, axis=3)
            found = {"m": np.clip(coarse + 0.3 * uniform(1, 16, 32), 0, 1)}
        case _:
            boxes = uniform(4, 40) * np.array([[64], [32], [20], [20]])
            found = {"y": np.concatenate([boxes, uniform(3, 40) * busy], axis=1)}
    return {name: values.astype(np.float32) for name, values in found.items()}


def assert_near(result: FrameResult | ValueError, expected: FrameResult) -> None:
    assert isinstance(result, FrameResult)
    assert result.scores == pytest.approx(dict(expected.scores), abs=1e-6)
    assert [region.label for region in result.regions] == [region.label for region in expected.regions]
    for one, other in zip(result.regions, expected.regions, strict=True):
        assert (one.score, one.x, one.y, one.width, one.height) == pytest.approx(
            (other.score, other.x, other.y, other.width, other.height), abs=1e-5
        )


batches = given(
    kind=st.sampled_from(sorted(BATCHED)),
    placements=st.lists(st.sampled_from(PLACEMENTS), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)


@batches
def test_batches_are_read_as_the_reference_reads_each_picture(kind: str, placements: list[Placement], seed: int) -> None:
    spec = BATCHED[kind]
    outputs = random_outputs(kind, len(placements), seed)
    results = make_head(spec).read_batch(outputs, placements)
    for row, (result, placement) in enumerate(zip(results, placements, strict=True)):
        one = {name: values[row] for name, values in outputs.items()}
        assert_near(result, getattr(heads_reference, spec.head)(spec, one, placement))


@batches
def test_a_picture_is_read_the_same_alone_and_in_any_batch(kind: str, placements: list[Placement], seed: int) -> None:
    head, outputs = make_head(BATCHED[kind]), random_outputs(kind, len(placements), seed)
    alone = [
        head.read({name: values[row] for name, values in outputs.items()}, placement) for row, placement in enumerate(placements)
    ]
    kept = {name: values.copy() for name, values in outputs.items()}
    results = head.read_batch(outputs, placements)
    for name, values in outputs.items():
        assert np.array_equal(values, kept[name])  # what it is given is only read,
        values[:] = 0.5  # and no result refers to it
    assert results == alone


@batches
def test_a_row_that_is_not_finite_fails_alone(kind: str, placements: list[Placement], seed: int) -> None:
    head, outputs = make_head(BATCHED[kind]), random_outputs(kind, len(placements), seed)
    good = head.read_batch(outputs, placements)
    row, name, value = seed % len(placements), sorted(outputs)[seed % len(outputs)], (np.nan, np.inf, -np.inf)[seed % 3]
    outputs[name][row].flat[seed % outputs[name][row].size] = value
    results = head.read_batch(outputs, placements)
    assert isinstance(results[row], ValueError)
    assert str(results[row]) == f"output {name!r} is not finite everywhere"
    assert [*results[:row], *results[row + 1 :]] == [*good[:row], *good[row + 1 :]]


@pytest.mark.parametrize("kind", sorted(BATCHED))
def test_what_is_wrong_with_the_whole_batch_fails_every_row_with_an_error_of_its_own(kind: str) -> None:
    head, outputs = make_head(BATCHED[kind]), random_outputs(kind, 3, 1)
    name = next(iter(outputs))
    for broken, message in [
        ({}, "is missing"),
        ({**outputs, name: outputs[name][:2]}, "has 2 rows, 3 expected"),
        ({**outputs, name: outputs[name][..., None]}, "dimensions expected"),
        ({**outputs, name: outputs[name][:, :0]}, "dimensions expected"),
    ]:
        results = head.read_batch(broken, [WHOLE] * 3)
        assert len({id(result) for result in results}) == 3
        assert all(isinstance(result, ValueError) and message in str(result) for result in results)
    assert head.read_batch(outputs, []) == []


# --- all


def good_outputs() -> list[tuple[Head, dict[str, NDArray[Any]]]]:
    return [
        (classifier(LabelSpec("a", classes=(0,))), {"y": np.ones(3, np.float32)}),
        (faces(), dict(face_maps((3, 5, 0.9, 16, 8)))),
        (text(), dict(text_map((8, 16, 8, 32)))),
        (yolo(LabelSpec("a", classes=(0,))), dict(detections((24, 16, 16, 8, (0.9,))))),
    ]


@pytest.mark.parametrize(("head", "outputs"), good_outputs(), ids=["classification", "faces", "text", "yolo"])
@pytest.mark.parametrize("broken", ["nan", "infinite", "missing", "dimensions", "empty"])
def test_broken_outputs_are_an_error(head: Head, outputs: dict[str, NDArray[Any]], broken: str) -> None:
    head.read(outputs, WHOLE)
    for name, good in outputs.items():
        bad = good.copy()
        bad.flat[1] = {"nan": np.nan, "infinite": np.inf}.get(broken, 0)
        changed: dict[str, NDArray[Any]] = {**outputs, name: bad}
        if broken == "missing":
            del changed[name]
        elif broken == "dimensions":
            changed[name] = bad[None]
        elif broken == "empty":
            changed[name] = bad[..., :0]
        with pytest.raises(ValueError, match=f"output {name!r} (is missing|has shape|is not finite)"):
            head.read(changed, WHOLE)


def test_maps_that_do_not_belong_together_are_an_error() -> None:
    maps = face_maps((3, 5, 0.9, 16, 8))
    maps["scale"] = maps["scale"][:, :4]
    with pytest.raises(ValueError, match="do not belong together"):
        faces().read(maps, WHOLE)


def test_an_unknown_head_lists_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=f"unknown head 'x', known are {', '.join(sorted(HEADS))}"):
        make_head(manifest("x", ("y",), (LabelSpec("a"),)))
