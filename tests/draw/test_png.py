"""Letters in a PNG: where their anchors say, in their colour, and above what they stand on."""

import io

import numpy as np
import pytest
from PIL import Image

from helpers.draw import Label, Rect, Scene, to_png
from tests.draw.scenes import box_of

SCALE = 2.0


def scene(*items):
    return Scene(width=200, height=60, title="letters", summary="", items=items)


def pixels(*items, **look):
    with Image.open(io.BytesIO(to_png(scene(*items), scale=SCALE, **look))) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def ink(image):
    """left, top, right, bottom in the Scene's pixels of what differs from the corner."""
    rows, columns = np.nonzero(np.abs(image - image[0, 0]).sum(axis=2) > 120)
    return np.array([columns.min(), rows.min(), columns.max(), rows.max()]) / SCALE


@pytest.mark.parametrize("bold", [False, True])
def test_a_label_stands_where_its_anchor_says(bold):
    label = {"y": 30, "text": "Exposed 7×", "size": 14, "bold": bold}
    start, middle, end = (ink(pixels(Label(x=100, anchor=anchor, **label))) for anchor in ("start", "middle", "end"))
    assert start[0] == pytest.approx(100, abs=2.5) and end[2] == pytest.approx(100, abs=2.5)
    assert (middle[0] + middle[2]) / 2 == pytest.approx(100, abs=2.5)
    assert start[1] == middle[1] == end[1] < 30 < start[3]


def test_a_label_fits_its_box():
    label = Label(x=20, y=30, text="forward · 12.5 MB → 3", size=12)
    left, top, right, bottom = ink(pixels(label))
    assert box_of(label)[0] <= left and right <= box_of(label)[2]
    assert box_of(label)[1] - 2 <= top and bottom <= box_of(label)[3] + 2


def test_a_label_is_above_its_bar_in_the_colour_of_its_kind():
    bar = Rect(x=0, y=0, width=200, height=60, fill="forward")
    bare, written = pixels(bar), pixels(Label(x=100, y=30, text="forward", anchor="middle", on="forward"), bar)
    assert np.array_equal(bare[0, 0], written[0, 0]) and not np.array_equal(bare, written)
    assert written.max() > 240 > bare.max()  # white letters on blue


def test_a_small_patch_keeps_its_colour_among_many_others():
    bars = [Rect(x=one, y=0, width=1, height=50, fill="forward", opacity=one / 200) for one in range(200)]
    image = pixels(*bars, Rect(x=190, y=52, width=6, height=6, fill="activations"))
    assert image[110, 386].tolist() == [0xE6, 0x9F, 0x00] and image[119, 0].tolist() == [255, 255, 255]
