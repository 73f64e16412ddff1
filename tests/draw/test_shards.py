"""Every cell of a split matrix stands with its rank, as torch would split it."""

import re

import pytest
import torch

from helpers.draw import Label, Matrix, Rect, shards_scene
from tests.draw.scenes import SCENES, rects_with_tooltip


def owners(scene, name):
    """The rank of each cell as its tooltip says: {(row, column): rank}."""
    pattern = re.compile(rf"{name}, row (\d+), column (\d+): rank (\d+)")
    found = [pattern.match(item.tooltip) for item in scene.items if isinstance(item, Rect)]
    return {(int(m[1]), int(m[2])): int(m[3]) for m in found if m}


def expected(cut, num_parts, rows=4, columns=6):
    """Torch's own cut of a matrix that holds its cells' numbers."""
    cells = torch.arange(rows * columns).reshape(rows, columns)
    flat = cells.flatten() if cut == "flat" else cells
    parts = flat.chunk(num_parts, dim=1 if cut == "columns" else 0)
    return {divmod(int(cell), columns): rank for rank, part in enumerate(parts) for cell in part.flatten()}


@pytest.mark.parametrize(
    ("cut", "num_parts"), [("columns", 3), ("columns", 6), ("rows", 2), ("flat", 4), ("flat", 12), ("rows", 1)]
)
def test_cells_belong_to_the_rank_that_torch_gives_them_to(cut, num_parts):
    matrix = Matrix(name="A", num_rows=4, num_columns=6, cut=cut, num_parts=num_parts)
    assert owners(shards_scene([matrix]), "A") == expected(cut, num_parts)


def test_parts_of_other_ranks_carry_their_numbers():
    scene = shards_scene([Matrix(name="A", num_rows=2, num_columns=4, cut="columns", num_parts=2, ranks=(4, 6))])
    assert {"rank 4", "rank 6"} <= {label.text for label in scene.labels()}
    assert owners(scene, "A")[0, 3] == 6


def test_never_colour_alone():
    """Beside the legend each part has a label of its own."""
    for name, parts in (("column parallel", 4 + 4), ("row parallel", 2), ("16 parts", 16)):
        labels = [label for label in SCENES[name].labels() if label.y > 40 and not label.on]
        labels = [label for label in labels if re.fullmatch(r"(rank )?\d+", label.text)]
        assert len(labels) == parts, name
    numbers = [label.text for label in SCENES["flat cuts"].labels()]
    assert numbers.count("7") == 6 and numbers.count("r2") == 2


def test_values_stand_in_their_cells():
    scene = shards_scene([Matrix(name="A", num_rows=1, num_columns=2, cut="columns", num_parts=2, values=[[-0.25, 3]])])
    boxes = rects_with_tooltip(scene)
    labels = {label.text: label.x for label in scene.labels()}
    for text, box in zip(("-0.25", "3"), boxes, strict=True):
        assert labels[text] == pytest.approx(box.x + box.width / 2)


def test_cells_are_equally_large_in_all_matrices():
    sizes = {item.width for item in SCENES["column parallel"].items if isinstance(item, Rect) and item.tooltip}
    assert len(sizes) == 1


def test_words():
    scene = SCENES["column parallel"]
    texts = [label.text for label in scene.labels()]
    assert {"(B·T) × C", "every rank: all of it", "each: 1/4 of the columns", "no communication", "6 × 8"} <= set(texts)
    assert "X, (B·T) × C, is not split; every rank holds all of it." in scene.summary
    assert "A, 6 × 8, is split by columns into 4 parts; held by ranks 0 to 3." in scene.summary
    assert "held by ranks 1." in SCENES["row parallel"].summary
    mixed = Matrix(name="A", num_rows=1, num_columns=4, cut="flat", num_parts=4, ranks=(0, 1, 5, 7))
    assert "split as one flat vector into 4 parts; held by ranks 0 to 1, 5, 7." in shards_scene([mixed]).summary


@pytest.mark.parametrize(
    ("look", "sentence"),
    [
        ({"cut": "columns", "num_parts": 4}, "4 parts do not divide the 6 columns of matrix A; choose"),
        ({"cut": "flat", "num_parts": 5}, "5 parts do not divide the 24 numbers"),
        ({"cut": "rows", "num_parts": 0}, "has 0 parts; give at least 1"),
        ({"num_parts": 2}, "with cut None has 2 parts; give at least 1, and a cut"),
        ({"cut": "diagonal"}, "the cut of matrix A is 'diagonal'; it must be columns, rows, flat or None"),
        ({"num_rows": 0}, "matrix A is 0 x 6; both must be at least 1"),
        ({"cut": "rows", "num_parts": 2, "ranks": (1,)}, "2 parts but 1 ranks; give one each"),
        ({"values": [[1, 2], [3]]}, r"matrix A is 4 x 6, but its values are \[\(2, 1\), \(2, 2\)\]"),
        ({"num_columns": 500}, "A 4 x 500 do not fit into 800 pixels"),
    ],
)
def test_bad_input_gets_a_sentence(look, sentence):
    with pytest.raises(ValueError, match=sentence):
        shards_scene([Matrix(**{"name": "A", "num_rows": 4, "num_columns": 6, **look})])


def test_what_a_rank_holds_can_be_said_in_other_words_and_cells_can_be_smaller():
    one = Matrix(name="K", num_rows=4, num_columns=3, cut="rows", num_parts=4, part_text="a copy of 1 of 2")
    large, small = shards_scene([one]), shards_scene([one], largest=12)
    assert "a copy of 1 of 2" in {item.text for item in small.items if isinstance(item, Label)}
    assert small.height < large.height
