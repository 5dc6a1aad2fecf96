import io

import pytest
from rich.console import Console, RenderableType

from keyglance.table import answer_view, server_view
from keyglance.v1 import keyglance_pb2 as pb


def shown(view: RenderableType, *, width: int = 120, colour: bool = False, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=file, width=width, highlight=False, force_terminal=colour).print(view)
    file.flush()
    return raw.getvalue().decode(encoding)


def row(text: str, word: str) -> str:
    return next(line for line in text.splitlines() if word in line)


def test_the_answers_facts_are_all_there(answer: pb.LabelResponse) -> None:
    text = shown(answer_view("clip.mp4", answer))
    assert row(text, "clip.mp4").split() == ["clip.mp4", "REVIEW"]
    for fact in ("h264 High", "1920×1080", "turned 90°", "1:15.4", "5.0 MiB", "2 of 1,885 pictures seen", "60.2 s at 0:10"):
        assert fact in text
    assert "a degraded answer is reviewed" in text
    espresso, cup = row(text, "espresso"), row(text, "cup")
    for fact in ("(drink)", "0.97", "0.50", "0:00–1:05, 1:10", "tags 0.97"):
        assert fact in espresso
    assert espresso.count("━") == 10
    assert cup.count("━") == 3
    assert "0.31" in cup
    assert "FRAME_DAMAGED: 1 of 3 pictures was damaged" in text
    assert "GAP_EXCEEDED ×2: 60.2 s where 10 s are wanted" in text
    assert "412 ms: index 12 · decode 140 (3 waiting, 1 created)" in text
    assert "trace 4bf92f3577b34da6a3ce929d0e0e4736" in text
    assert "keyframe" not in text


def test_frame_scores_on_request(answer: pb.LabelResponse) -> None:
    text = shown(answer_view("clip.mp4", answer, frame_scores=True))
    assert "espresso 0.97, cup 0.20; 1 region" in row(text, "0:00.0")
    assert "between, not shown" in row(text, "0:10.0")
    assert "skipped: FRAME_DAMAGED" in row(text, "1:10.2")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(answer: pb.LabelResponse, info: pb.GetServerInfoResponse, width: int) -> None:
    for view in (answer_view("clip.mp4", answer, frame_scores=True), server_view("127.0.0.1:50051", info)):
        assert max(len(line) for line in shown(view, width=width).splitlines()) <= width


def test_without_a_terminal_it_is_plain(answer: pb.LabelResponse) -> None:
    assert "\x1b" not in shown(answer_view("clip.mp4", answer))
    assert "\x1b" in shown(answer_view("clip.mp4", answer), colour=True)


def test_bars_in_ascii(answer: pb.LabelResponse) -> None:
    answer.Clear()
    answer.labels.add(name="cup", score=0.5)
    answer.labels.add(name="none", score=float("nan"))
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", errors="replace")
    Console(file=file, width=80).print(answer_view("clip.mp4", answer))
    file.flush()
    assert "#####....." in raw.getvalue().decode()


def test_texts_of_a_hostile_file_reach_no_terminal(answer: pb.LabelResponse) -> None:
    answer.video.codec = "h264\x1b[2J"
    answer.labels[0].name = "[bold]x\x1b]0;title\x07"
    answer.degradations[0].detail = "a\nb\x1b[31m"
    text = shown(answer_view("\x1b[31mclip.mp4", answer))
    assert "\x1b" not in text
    assert "[bold]x" in text


def test_an_empty_answer_of_another_version(answer: pb.LabelResponse) -> None:
    empty = pb.LabelResponse(verdict=9, degradations=[pb.Degradation(reason=99)])  # type: ignore[arg-type]
    text = shown(answer_view("clip.mp4", empty))
    assert "UNKNOWN_9" in text
    assert "UNKNOWN_99" in text
    assert "no labels" in text


def test_many_segments_are_cut_short(answer: pb.LabelResponse) -> None:
    answer.labels[0].segments.extend(pb.Segment(start=second, end=second) for second in range(100, 120))
    text = " ".join(shown(answer_view("clip.mp4", answer), width=200).split())
    assert "18 more" in text


def test_the_servers_facts_are_all_there(info: pb.GetServerInfoResponse) -> None:
    text = shown(server_view("127.0.0.1:50051", info))
    assert row(text, "127.0.0.1:50051").split() == ["127.0.0.1:50051", "Keyglance", "0.1.0", "on", "cpu"]
    assert "2 models, 3 labels" in text
    assert row(text, "tags").split() == ["tags", "1", "2", "by", "default", "Apache-2.0", "abababababab"]
    assert "on request, required" in row(text, "faces")
    assert "decoder cpu: 2 of at most 8; h264, hevc" in text
    for limit in ("64.0 MiB", "33,177,600 pixels", "10:00", "100,000 samples", "64 pictures", "30 s"):
        assert limit in text
