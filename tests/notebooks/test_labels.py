"""No row of `reveal` prints what is typed, and each says where its value comes from (the rule stands in labels.py)."""

from __future__ import annotations

import pytest

from helpers.learner.guesses.questions import all_declarations
from tests.notebooks.chapter import CHAPTERS, load, source
from tests.notebooks.labels import broken, rows


def code_of(path):
    return [source(cell) for cell in load(path) if cell["cell_type"] == "code"]


def test_there_are_rows_to_check():
    assert sum(len([*rows(code_of(path))]) for path in CHAPTERS) > 150


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_no_row_prints_what_is_typed(path):
    numbers = {key for key, one in all_declarations().items() if isinstance(one.answer, float)}
    assert broken(code_of(path), numbers) == []


TYPED = [
    'reveal("k", predicted=4)',
    'reveal("k", predicted="78 %")',
    'reveal("k", measured=[1, 2])',
    'said = "silence"\nassert job.is_silent\nreveal("k", measured=said)',
    'waits = "rank 0"\nreveal("k", measured=f"{waits}")',
    'reveal("k", predicted=round(2.5, 1))',
    'reveal("k", predicted=2 * (4 - 1) / 4 * 4e6)',
    'expected = 2 * (4 - 1) / 4 * 4e6\nreveal("k", predicted=expected / 1e6)',
    'answer = 51.4e6\nreveal("k", predicted=answer / 1e6)',
    'reveal("k", measured=8 * 16 - 8 * 8)',
    'before, after = 16, 8\nreveal("k", measured=before - after)',  # a measurement is no arithmetic on what is named
    'reveal("k", predicted=["layer 2", "layer 1"])',
    'reveal("k", predicted=[f"gather {n}" for n in (2, 1, 0)])',
    'ends = {True: "yes", False: "no"}\nreveal("k", predicted=ends[False])',
    'reveal("k", emulated=sum(1 + n for n in range(4)))',
    'reveal("k", by_rules=str(5))',
    'reveal("k", measured="yes" if True else "no")',
    'reveal("k", measured=", ".join(["a", "b"]))',
]
COMPUTED = [
    'reveal("k", predicted=costs.rounds("broadcast", 64, "tree"))',
    'n, size = 4, 40\nreveal("k", predicted=(n - 1) * size / 1e6)',
    'hours, gpus = 30.84e6, 16_384\nreveal("k", published=round(hours / gpus / 24))',
    'held = ranks.run(f)\nreveal("k", measured=held[2])',
    'reveal("k", measured=f"rank {found.rank}")',
    'said = "2 times or less" if fast < 2.5 else "about 3 times"\nreveal("k", measured=said)',
    'said = {(True, False): "only the first"}\nreveal("k", emulated=said[is_slow])',
    'reveal("k", measured={0: "none", 1: "all"}.get(plain, "about half"))',
    'hides = {}\nhides[1] = tokens(1)\nreveal("k", predicted=hides[1])',
    'counted = {name: run(name) for name in ("a", "b")}\nreveal("k", measured=max(counted, key=counted.get))',
    'x, n = torch.ones(9), len(ranks)\nreveal("k", predicted=2 * (n - 1) / n * x.nbytes)',
    'text = f"of {len(found)} ranks"\nreveal("k", scene, text)',
    'reveal("k", "The picture is drawn from the script.")',
    'slow = Ranks(4, link=link)\nreveal("k", emulated=max(slow.run(f)))',
    'ranks = Ranks(4)\nreveal("k", measured=max(ranks.run(f)))',
    "%%ranks\nx = 1",
]
OTHERWISE = [
    ('reveal("k", predicted=16 * spec.num_params)', "has the typed number 16; name it"),
    ('reveal("k", predicted=share(3) - 4)', "has the typed number 4"),
    ('reveal("k", measured=12 / told.ranks)', "has the typed number 12"),
    ('reveal("k", measured=5 if found else 4)', "has the typed number 5"),
    ('best = {True: 5, False: 4}[is_good]\nreveal("k", measured=best)', "has the typed number 5"),
    ('reveal("k", measured=f"{found} of 12 steps")', "has 'of 12 steps' in its text"),
    ('grows = found()\nreveal("k", predicted=grows, measured=grows)', "are the same: grows"),
    ('reveal("number")', "shows the declared number"),
    ('said = "The data sheet: 495 TFLOP/s"\nreveal("k", scene, said)', "has typed numbers"),
    ('reveal("k", "All 12 losses are equal.")', "has typed numbers"),
    ('both = emulate_step(1)\nreveal("k", measured=both.duration)', "comes from emulate_step, which is paced"),
    ('took = Ranks(4, link=link).run(f)\nreveal("k", measured=max(took))', "which is paced: label it emulated"),
    ('def work():\n    time.sleep(1)\n\n\ntook = timed(work)\nreveal("k", measured=took)', "comes from sleep"),
    ('scene, hanging = programs_scene()\nreveal("k", measured=hanging)', "label it by_rules"),
]


@pytest.mark.parametrize("cell", TYPED)
def test_a_planted_typed_value_is_found(cell):
    (said,) = broken([cell])
    assert "is typed; compute it in the cell" in said


@pytest.mark.parametrize("cell", COMPUTED)
def test_what_is_computed_is_good(cell):
    assert broken([cell], {"number"}) == []


@pytest.mark.parametrize(("cell", "says"), OTHERWISE)
def test_each_other_rule_finds_what_is_planted(cell, says):
    (said,) = broken([cell], {"number"})
    assert says in said


def test_a_name_keeps_its_value_until_a_later_cell_binds_it_anew():
    show = 'reveal("k", measured=found)'
    assert broken(["found = 4", show]) and not broken(["found = 4", "found = run()", show])
    assert broken(["found = run()", f"found = 4\n{show}"])
