"""Provides the colours and textures of everything that is drawn: one Paint per kind, the same in every picture.

A kind is what is drawn: a sort of work ("forward"), of memory ("gradients"), of bits ("sign"), or a rank ("rank0").
The fills are safe for colour-blind eyes: they are Okabe and Ito's (Color Universal Design, 2008), and they do not
change with the theme. Related things share a hue: parameters and the forward that reads them, gradients and the
backward that makes them. Colour never stands alone, so each kind also has a texture, drawn in the opposite of its
text colour, so that text gains contrast from it. A fill too pale for a white page gets an outline in a darker shade
of itself. Ranks have eight paints, and a part that a rank owns also carries the rank's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from helpers.learner.words import book

DARK_TEXT, LIGHT_TEXT = "#0b0d10", "#ffffff"


@dataclass(frozen=True, kw_only=True)
class Paint:
    """A kind's colours of fill and of text on it, as "#rrggbb", and its texture, "" or one of TEXTURES."""

    fill: str
    text: str = DARK_TEXT
    texture: str = ""

    @property
    def overlay(self) -> str:
        """The colour of the texture."""
        return LIGHT_TEXT if self.text == DARK_TEXT else DARK_TEXT

    @cached_property
    def edge(self) -> str:
        """The colour of the outline: the fill, or its lightest shade whose contrast with white is 3 to 1."""
        shades = (blend(self.fill, "#000000", share / 100) for share in range(100, 0, -1))
        return next(shade for shade in shades if contrast(shade, LIGHT.surface) >= GRAPHIC_CONTRAST)


words = book("draw")  # what a reader sees, by name, in the learner's language: learner/words/draw.yaml
# The hatch marks that nothing is done, or that something is not there yet.
TEXTURES = ("stripes", "lines", "dots", "hatch")

PAINTS = {
    "forward": Paint(fill="#0072b2", text=LIGHT_TEXT),
    "backward": Paint(fill="#009e73", texture="stripes"),
    # The two halves of a backward: the gradients of the inputs, and those of the weights.
    "input_grad": Paint(fill="#85d4ba", texture="stripes"),
    "weight_grad": Paint(fill="#e69f00", texture="lines"),
    "optimizer": Paint(fill="#cc79a7", texture="dots"),
    "communication": Paint(fill="#d55e00"),
    "waiting": Paint(fill="#f0e442", texture="hatch"),
    "data": Paint(fill="#56b4e9"),
    "other": Paint(fill="#9aa3ad"),
    "parameters": Paint(fill="#0072b2", text=LIGHT_TEXT),
    "gradients": Paint(fill="#009e73", texture="stripes"),
    "activations": Paint(fill="#e69f00", texture="lines"),
    "buffers": Paint(fill="#56b4e9"),
    "temporaries": Paint(fill="#9aa3ad", texture="stripes"),
    "sign": Paint(fill="#d55e00"),
    "exponent": Paint(fill="#0072b2", text=LIGHT_TEXT),
    "mantissa": Paint(fill="#56b4e9"),
    "rank0": Paint(fill="#0072b2", text=LIGHT_TEXT),
    "rank1": Paint(fill="#e69f00"),
    "rank2": Paint(fill="#009e73"),
    "rank3": Paint(fill="#cc79a7"),
    "rank4": Paint(fill="#56b4e9"),
    "rank5": Paint(fill="#d55e00"),
    "rank6": Paint(fill="#f0e442"),
    "rank7": Paint(fill="#9aa3ad", texture="stripes"),
}
NUM_RANK_PAINTS = 8


@dataclass(frozen=True, kw_only=True)
class Theme:
    """The colours of what is not data.

    The role "muted" is ink at MUTED_OPACITY; "panel" and "rule" are GREY at PANEL_OPACITY and RULE_OPACITY.
    """

    surface: str  # the background
    ink: str  # texts, and lines that must stand out


LIGHT = Theme(surface="#ffffff", ink="#1b1f24")
DARK = Theme(surface="#111111", ink="#e8ebef")
GREY = "#808080"
MUTED_OPACITY, PANEL_OPACITY, RULE_OPACITY = 0.75, 0.1, 0.4
GRAPHIC_CONTRAST = 3.0  # the contrast that a mark needs with its background. Source: WCAG 2.2, 1.4.11


def kind_word(kind: str) -> str:
    """What a legend calls a kind, such as "backward: input", or "rank 3" for the paint of a rank."""
    return f"rank {kind.removeprefix('rank')}" if kind.startswith("rank") else words(f"kind.{kind}")


def kind_style(kind: str) -> dict[str, str]:
    """The fields of a Rect that has the kind's colour and texture."""
    return {"fill": kind, "texture": PAINTS[kind].texture}


def rank_paint(rank: int) -> str:
    """The kind with a rank's colour; from rank 8 on the colours repeat, so always write the rank's number too."""
    return f"rank{rank % NUM_RANK_PAINTS}"


def _channels(colour: str) -> tuple[float, float, float]:
    """Red, green and blue, each from 0 to 1."""
    return tuple(int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))


def blend(over: str, under: str, opacity: float) -> str:
    """The colour that is seen when `over` lies on `under` with this opacity."""
    pairs = zip(_channels(over), _channels(under), strict=True)
    return "#" + "".join(f"{round(255 * (opacity * a + (1 - opacity) * b)):02x}" for a, b in pairs)


def luminance(colour: str) -> float:
    """The relative luminance of a colour, 0 to 1. Source: WCAG 2.2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _channels(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour: str, other: str) -> float:
    """The contrast ratio of two colours, 1 to 21; text needs 4.5 (level AA). Source: WCAG 2.2."""
    low, high = sorted((luminance(colour), luminance(other)))
    return (high + 0.05) / (low + 0.05)
