"""Text and marks stand out from their ground, and kinds that occur together differ for every pair of eyes."""

from itertools import combinations

import pytest

from helpers.draw.mesh import AXIS_KINDS
from helpers.draw.palette import (
    DARK,
    GRAPHIC_CONTRAST,
    GREY,
    LIGHT,
    MUTED_OPACITY,
    NUM_RANK_PAINTS,
    PAINTS,
    PANEL_OPACITY,
    blend,
    contrast,
    rank_paint,
)
from helpers.records import KINDS, MEMORY_KINDS

every_theme = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
RANKS = tuple(map(rank_paint, range(NUM_RANK_PAINTS)))

# What colour-blind eyes see, in linear RGB. Source: Machado, Oliveira & Fernandes 2009, "A physiologically-based model
# for simulation of color vision deficiency", severity 1.
EYES = {
    "typical": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
WHITE = (0.95047, 1.0, 1.08883)  # D65


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def lab(colour, eyes):
    """CIE L*a*b* of what these eyes see. Source: CIE 15."""
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    seen = [min(1.0, max(0.0, c)) for c in times(eyes, linear)]
    shares = [value / white for value, white in zip(times(TO_XYZ, seen), WHITE, strict=True)]
    x, y, z = (s ** (1 / 3) if s > 216 / 24389 else (24389 / 27 * s + 16) / 116 for s in shares)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def difference(one, other, eyes):
    """Delta E of 1976; about 2 is the least that is seen side by side."""
    return sum((a - b) ** 2 for a, b in zip(lab(one, eyes), lab(other, eyes), strict=True)) ** 0.5


@pytest.mark.parametrize("kind", PAINTS)
def test_text_on_every_fill_has_contrast_aa(kind):
    assert contrast(PAINTS[kind].fill, PAINTS[kind].text) >= 4.5
    assert contrast(PAINTS[kind].overlay, PAINTS[kind].text) > contrast(PAINTS[kind].fill, PAINTS[kind].text)


@every_theme
@pytest.mark.parametrize("kind", PAINTS)
def test_every_mark_stands_out_from_its_ground(kind, theme):
    """By its fill, or by the outline that the renderers draw where the fill is too pale."""
    assert contrast(PAINTS[kind].edge, theme.surface) >= GRAPHIC_CONTRAST


@every_theme
def test_ink_has_contrast_aa_on_its_ground(theme):
    assert contrast(theme.ink, theme.surface) >= 4.5
    muted = blend(theme.ink, theme.surface, MUTED_OPACITY)
    assert contrast(muted, theme.surface) >= 4.5
    panel = blend(GREY, theme.surface, PANEL_OPACITY)
    assert contrast(theme.ink, panel) >= 4.5 and contrast(muted, panel) >= 4.5
    deepest = blend(PAINTS["buffers"].fill, theme.surface, 0.54)  # a chunk that lacks one contribution
    assert contrast(theme.ink, deepest) >= 4.5


@pytest.mark.parametrize("eyes", EYES.values(), ids=EYES)
@pytest.mark.parametrize(
    "kinds",
    [
        KINDS,
        MEMORY_KINDS,
        RANKS,
        (*AXIS_KINDS.values(), "parameters"),
        ("sign", "exponent", "mantissa", "other"),
        ("buffers", "gradients", "communication"),
    ],
    ids=["timelines", "memory", "ranks", "meshes", "formats", "collectives"],
)
def test_kinds_of_one_picture_differ_for_all_eyes(eyes, kinds):
    """By 15 and more, or by their texture."""
    for one, other in combinations(kinds, 2):
        apart = difference(PAINTS[one].fill, PAINTS[other].fill, eyes)
        assert apart >= 15 or PAINTS[one].texture != PAINTS[other].texture, (one, other, apart)
