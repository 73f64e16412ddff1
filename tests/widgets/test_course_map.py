"""The map shows chapters and stations from the notebooks, what was done, and a saved notebook keeps nothing of that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from helpers.draw import MapRow, course_map_scene, to_svg
from helpers.interview.bank_file import load_bank
from helpers.learner import progress
from helpers.learner.course import Chapter, Station, chapters
from helpers.widgets import course_map
from tests.draw.scenes import box_of


def station(letter: str, minutes: int, *, on_path: bool = True, **keys: tuple[str, ...]) -> Station:
    keys = {"guesses": (), "exercises": ()} | keys
    return Station(letter=letter, title="Title", minutes=minutes, on_path=on_path, first=1, last=2, **keys)


A = station("A", 6, guesses=("08.a", "08.b"))
B = station("B", 7, exercises=("08.f",))
C = station("C", 10, on_path=False, guesses=("08.c",))
ZERO = Chapter(name="08_zero", title="ZeRO", stations=(A, B, C), tasks=("08.bytes", "08.step"))
START = Chapter(name="00_start_here", title="Start here")


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr("helpers.widgets.progress_view.chapters", lambda: (START, ZERO))
    return tmp_path / "progress.jsonl"


def labels(scene) -> list[str]:
    return [label.text for label in scene.labels()]


def test_nobody_has_done_anything(path):
    view = course_map(path=path)
    assert view.sentence == "Next for you: 08 ZeRO, station A, 6 minutes."
    shown = labels(view.scene)
    assert {"13 / 23", "0 of 2", "0 of 3", f"{len(load_bank('08_zero'))} new"} <= set(shown)
    assert [letter for letter in shown if letter and letter in "ABC"] == ["A", "B", "C"]


def test_what_was_guessed_and_passed_counts(path):
    for kind, key, passed in [("guess", "08.a", False), ("check", "08.f", True), ("check", "08.step", False)]:
        progress.record(kind, key, passed, path=path)
    view = course_map(path=path)
    assert view.rows[1].share(A) == 0.5 and view.rows[1].share(B) == 1 and view.rows[1].share(C) == 0
    assert {"1 of 3", "0 of 2"} <= set(labels(view.scene)) and "station A" in view.sentence
    progress.record("guess", "08.b", True, path=path)
    assert "station A" in view.sentence
    view.refresh()
    assert "station C, 10 minutes" in view.sentence


def test_the_end(path):
    for key in ("08.a", "08.b", "08.c"):
        progress.record("guess", key, True, path=path)
    progress.record("check", "08.f", True, path=path)
    assert course_map(path=path).sentence == "Next for you: the lab of 08 ZeRO."
    for key in ZERO.tasks:
        progress.record("check", key, True, path=path)
    assert course_map(path=path).sentence == "You have been at every station."


def test_cards_that_are_due(path):
    first, second = load_bank("08_zero")[:2]
    long_ago = datetime.now(UTC) - timedelta(days=400)
    progress.record("quiz", first.id, True, path=path, when=long_ago, rating="good", form="folded")
    progress.record("quiz", second.id, True, path=path, rating="easy", form="folded")
    assert course_map(path=path).rows[1].cards == "1"


def test_what_a_saved_notebook_keeps_is_nobodys(path):
    before = course_map(path=path)
    progress.record("guess", "08.a", True, path=path)
    after = course_map(path=path)
    assert after.saved == before.saved and after.scene != before.scene and str(after) == str(before)
    assert after._repr_mimebundle_()[0]["image/png"] == before._repr_mimebundle_()[0]["image/png"]
    assert "of" not in labels(after.saved) and {"2", "3"} <= set(labels(after.saved))


def test_a_link_leads_to_the_next_chapter_from_a_chapter_and_from_a_lab(path, tmp_path, monkeypatch):
    (tmp_path / "08_zero.ipynb").touch()
    (tmp_path / "labs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert '<a href="08_zero.ipynb">08 ZeRO</a>' in course_map(path=path).html.value
    monkeypatch.chdir(tmp_path / "labs")
    assert '<a href="../08_zero.ipynb">08 ZeRO</a>' in course_map(path=path).html.value


def test_a_fresh_learner_is_sent_to_the_first_chapter_and_not_to_the_interview(path, monkeypatch):
    talk = Chapter(name="interview", title="Interview", stations=(station("A", 7, guesses=("interview.a",)),))
    monkeypatch.setattr("helpers.widgets.progress_view.chapters", lambda: (ZERO, talk))
    assert "08 ZeRO, station A" in course_map(path=path).sentence


def test_the_chapter_that_was_touched_last_comes_first_and_its_lab_after_its_stations(path, tmp_path, monkeypatch):
    first = Chapter(name="01_first", title="First", stations=(station("A", 5, guesses=("01.a",)),), tasks=("01.t",))
    monkeypatch.setattr("helpers.widgets.progress_view.chapters", lambda: (first, ZERO))
    (tmp_path / "labs").mkdir()
    (tmp_path / "labs" / "08_zero.ipynb").touch()
    monkeypatch.chdir(tmp_path)
    assert "01 First, station A" in course_map(path=path).sentence
    for kind, key in [("guess", "08.a"), ("guess", "08.b"), ("guess", "08.c"), ("check", "08.f")]:
        progress.record(kind, key, True, path=path)
    assert '<a href="labs/08_zero.ipynb">08 ZeRO</a>' in course_map(path=path).html.value
    for key in ZERO.tasks:
        progress.record("check", key, True, path=path)
    assert "01 First, station A" in course_map(path=path).sentence


def test_a_file_that_cannot_be_read_and_no_chapters_get_a_sentence(path, monkeypatch):
    path.mkdir()
    assert "cannot be read" in course_map(path=path).text
    monkeypatch.setattr("helpers.widgets.progress_view.chapters", lambda: ())
    assert course_map(path=path).sentence.startswith("The map found no chapters")
    with pytest.raises(ValueError, match="no chapters"):
        course_map_scene([])


def test_the_map_of_the_course_as_it_is():
    scene = course_map_scene([MapRow(chapter=one) for one in chapters()])
    assert {"00", "08", "Interview"} <= set(labels(scene)) and to_svg(scene).startswith("<svg")
    assert all(box_of(label)[2] <= scene.width for label in scene.labels())
    assert min(label.size for label in scene.labels() if label.text[:1].isdigit()) >= 12
