"""Labels of clips whose content is known, through client, server, worker processes and real models."""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keyglance import Answer, Client
from keyglance.answer import passed, reason, verdict
from loadtest import clips

pytestmark = pytest.mark.models

STEPS = ["receive", "index", "sample", "decode", "preprocess", "infer", "fuse", "total"]


def scores(answer: Answer) -> dict[str, float]:
    return {label.name: label.score for label in answer.labels}


def reasons(answer: Answer) -> set[str]:
    return {reason(item.reason) for item in answer.degradations}


@pytest.fixture(scope="module")
def faces(client: Client) -> Answer:
    """The answer to a clip of one woman's face."""
    portrait = clips.fit(clips.photograph("astronaut"), 512, 512)
    return client.label(clips.encode(clips.hold(portrait, 50), keyframe_interval=25), frame_scores=True)


def test_a_cup_of_espresso_is_an_espresso(client: Client, coffee_clip: bytes) -> None:
    answer = client.label(coffee_clip, request_id="cup 1")
    assert scores(answer)["espresso"] >= 0.9
    assert "espresso" in {label.name for label in passed(answer)}
    assert answer.request_id == "cup 1"
    assert answer.coverage.frames == 4
    assert [round(frame.time, 3) for frame in answer.frames] == [0, 1, 2, 3]
    assert all(frame.keyframe for frame in answer.frames)
    assert (answer.video.codec, answer.video.width, answer.video.height) == ("h264", 640, 432)
    assert (answer.video.samples, answer.video.keyframes, answer.video.size) == (100, 4, len(coffee_clip))
    assert answer.video.duration == pytest.approx(4)
    assert not answer.degradations
    assert verdict(answer) == "PASS"


def test_segments_say_when(client: Client, coffee: clips.Picture) -> None:
    blank = clips.grey(640, 432)
    pictures = [*clips.hold(blank, 50), *clips.hold(coffee, 50), *clips.hold(blank, 50)]
    answer = client.label(clips.encode(pictures, keyframe_interval=25))
    (espresso,) = [label for label in answer.labels if label.name == "espresso"]
    (segment,) = espresso.segments
    assert segment.start <= 2 <= segment.peak <= 3 <= segment.end
    assert segment.start >= 1
    assert segment.end <= 4
    assert {source.model for source in espresso.sources} == {"efficientnet-lite0"}


def test_one_face_gives_one_box_on_it(faces: Answer) -> None:
    assert scores(faces)["face"] >= 0.5
    for frame in faces.frames:
        (region,) = [region for region in frame.regions if region.label == "face"]
        assert region.score >= 0.5
        assert 0.38 < region.x + region.width / 2 < 0.50
        assert 0.15 < region.y + region.height / 2 < 0.30
        assert 0.1 < region.width < 0.3


def test_a_clip_that_lies_on_its_side_is_turned(client: Client, faces: Answer) -> None:
    portrait = clips.fit(clips.photograph("astronaut"), 512, 512)
    lying = portrait.swapaxes(0, 1)[::-1]  # a quarter turn counter-clockwise
    clip = clips.encode(clips.hold(lying, 25), rotation=90)
    answer = client.label(clip, frame_scores=True, thumbnails=True, thumbnail_size=128)
    assert answer.video.rotation == 90
    (region,) = [region for region in answer.frames[0].regions if region.label == "face"]
    (upright,) = [region for region in faces.frames[0].regions if region.label == "face"]
    assert (region.x, region.y) == pytest.approx((upright.x, upright.y), abs=0.03)
    thumbnail = Image.open(io.BytesIO(answer.frames[0].thumbnail)).convert("L")
    assert thumbnail.size == (128, 128)


def test_a_page_of_text_is_text(client: Client) -> None:
    page = clips.encode(clips.hold(clips.text_page(640, 480), 25))
    answer = client.label(page, models=["open-nsfw", "ppocr-text"], frame_scores=True)
    assert scores(answer)["text on screen"] >= 0.9
    assert "text on screen" in {label.name for label in passed(answer)}
    assert len(answer.frames[0].regions) >= 10  # of 14 lines


def test_what_hides_behind_one_grey_keyframe_is_seen(client: Client, coffee: clips.Picture) -> None:
    minute = clips.encode([clips.grey(640, 432), *clips.hold(coffee, 299)], fps=5, keyframes=(0,))
    answer = client.label(minute)
    assert answer.video.keyframes == 1
    assert scores(answer)["espresso"] >= 0.9
    assert answer.coverage.largest_gap <= 10 + 1e-6
    assert [frame.keyframe for frame in answer.frames].count(True) == 1
    assert not answer.degradations

    blind = client.label(minute, add_non_keyframes=False)
    assert "espresso" not in {label.name for label in passed(blind)}
    assert "GAP_EXCEEDED" in reasons(blind)
    assert verdict(blind) != "PASS"


@pytest.mark.parametrize(
    ("codec", "container", "pixel_format"),
    [
        ("libx264", "mp4", "yuv420p"),
        ("libx264", "mpegts", "yuv420p"),
        ("libx264", "flv", "yuv420p"),
        ("libx264", "matroska", "yuv444p"),
        ("libx264", "mov", "yuv422p10le"),
        ("libx265", "mp4", "yuv420p10le"),
        ("libvpx", "webm", "yuv420p"),
        ("libvpx-vp9", "webm", "yuv420p"),
        ("libsvtav1", "mp4", "yuv420p"),
        ("mpeg4", "avi", "yuv420p"),
        ("mpeg2video", "mpeg", "yuv420p"),
        ("mjpeg", "mov", "yuvj420p"),
        ("prores_ks", "mov", "yuv422p10le"),
    ],
)
def test_codecs_and_containers(client: Client, coffee: clips.Picture, codec: str, container: str, pixel_format: str) -> None:
    clip = clips.encode(clips.hold(coffee, 10), codec=codec, container=container, pixel_format=pixel_format, keyframes=(0, 5))
    answer = client.label(clip, thumbnails=True, thumbnail_size=320)
    assert scores(answer)["espresso"] >= 0.7  # encoders at their fastest take some of it away
    assert answer.coverage.frames >= 1
    seen = np.asarray(Image.open(io.BytesIO(answer.frames[0].thumbnail)).convert("RGB")).astype(int)
    difference = seen - clips.fit(coffee, 320, 216)
    assert np.abs(difference.mean(axis=(0, 1))).max() < 1.5  # matrix and range were the stream's
    assert np.abs(difference).mean() < 6


def test_a_real_clip(client: Client, clips_folder: Path) -> None:
    answer = client.label(clips_folder / "bikes.mp4", frames=16)
    assert (answer.video.codec, answer.video.width, answer.video.height, answer.video.keyframes) == ("h264", 640, 272, 6)
    assert [round(frame.time, 2) for frame in answer.frames if frame.keyframe] == [0, 1.2, 3.04, 5.48, 7.48, 9.68]
    assert answer.labels
    assert answer.coverage.largest_gap <= 10


def test_timings_are_those_of_the_steps_in_order(client: Client, coffee_clip: bytes) -> None:
    timings = client.label(coffee_clip).timings
    assert [timing.step for timing in timings] == STEPS
    total = timings[-1]
    assert all(0 <= timing.start_ms <= timing.start_ms + timing.wall_ms <= total.wall_ms + 1e-6 for timing in timings)
    assert all(timing.wait_ms >= 0 for timing in timings)


def test_a_usual_call_creates_nothing(client: Client, coffee_clip: bytes) -> None:
    client.label(coffee_clip)
    assert [timing.created for timing in client.label(coffee_clip).timings] == [0] * len(STEPS)


def test_models_may_be_chosen(client: Client, coffee_clip: bytes) -> None:
    answer = client.label(coffee_clip, models=["efficientnet-lite0"], least_score=0, frame_scores=True)
    assert [model.name for model in answer.models] == ["efficientnet-lite0"]
    assert {score.model for frame in answer.frames for score in frame.scores} == {"efficientnet-lite0"}
    assert "nsfw" not in scores(answer)


def test_callers_at_once_get_the_answers_to_their_own_clips(client: Client, coffee_clip: bytes) -> None:
    page = clips.encode(clips.hold(clips.text_page(640, 480), 25))
    models = ["efficientnet-lite0", "ppocr-text"]
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda clip: client.label(clip, models=models), [coffee_clip, page] * 6))
    for cup, text in zip(answers[::2], answers[1::2], strict=True):
        assert scores(cup)["espresso"] >= 0.9
        assert "espresso" not in {label.name for label in passed(text)}
        assert scores(text)["text on screen"] >= 0.5


def test_the_server_says_what_it_is(client: Client) -> None:
    info = client.server_info()
    by_name = {model.name: model for model in info.models}
    assert {"open-nsfw", "efficientnet-lite0", "centerface"} <= set(by_name)
    assert "espresso" in {label.name for label in by_name["efficientnet-lite0"].labels}
    assert all(len(model.digest) == 64 and model.licence for model in info.models)
    assert info.device.split()[0] == "cpu"  # the reason why there is no GPU follows
    assert {"h264", "hevc", "vp9", "av1"} <= set(info.decoders[0].codecs)
    assert 0 < info.decoders[0].decoders <= info.decoders[0].limit
    assert client.health() == "SERVING"
