"""Draws the moving picture of the README, docs/first_minute.gif, from a recording of real runs.

A training script runs on four ranks, and rank 2 has one batch fewer than the others. The picture asks what one will
see, shows the same script under torchrun and on this course's ranks, and ends with the list of chapters. It quotes
what was really printed: `tools/pictures.py` runs the script, records its output, and calls `draw`.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib
from PIL import Image, ImageColor, ImageDraw, ImageFont

SIZE, SHARPER = (1200, 640), 2  # pixels of the picture; each is drawn as SHARPER x SHARPER pixels and averaged
BACK, PANEL, EDGE, TEXT, DIM = "#101a2f", "#18243f", "#33466e", "#eef2fa", "#9fb0cf"
GREEN, AMBER, RED, BLUE, DARK = "#57d39b", "#ffcb5c", "#ff7b76", "#79b8ff", "#0b1222"
PAIRS = {  # colours that are drawn on another one, so that their mixtures are in the palette
    BACK: (TEXT, DIM, EDGE, GREEN, AMBER, RED, BLUE, PANEL, DARK),
    PANEL: (TEXT, DIM, EDGE, AMBER, RED, GREEN),
    DARK: (TEXT, DIM, EDGE, AMBER, RED, GREEN, BLUE),
}
MIXTURES = 9  # of each pair, with the two themselves
QUESTION = "Four ranks run this code.", "What will you see in step 3?"
CHOICES = ("an error that names rank 2", "errors on ranks 0, 1 and 3", "a result that is too small", "nothing at all")
GUESSED, RIGHT = 0, 3
Frame = tuple[Image.Image, float]  # and its seconds


@functools.cache
def font(size: int, style: str = "") -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib. style: "", "-Bold", "Mono", "Mono-Bold"."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(folder / f"DejaVuSans{style}.ttf", size * SHARPER)


class Page:
    """One frame while it is drawn, in pixels of the finished picture."""

    def __init__(self, number: int, title: str) -> None:
        self.image = Image.new("RGB", tuple(SHARPER * side for side in SIZE), BACK)
        self.pen = ImageDraw.Draw(self.image)
        self.box((0, 0, *SIZE), BACK, EDGE, radius=0)
        if number:
            self.box((40, 30, 84, 74), BLUE, radius=22)
            self.text((62, 52), str(number), 26, DARK, "-Bold", anchor="mm")
        self.text((102 if number else 40, 52), title, 30, TEXT, "-Bold", anchor="lm")

    def box(self, at: tuple[float, ...], fill: str, outline: str | None = None, radius: int = 12) -> None:
        corners = [SHARPER * one for one in at]
        self.pen.rounded_rectangle(corners, SHARPER * radius, fill, outline, 2 * SHARPER if outline else 0)

    def text(
        self, at: tuple[float, float], text: str, size: int, colour: str = TEXT, style: str = "", anchor: str = "la"
    ) -> None:
        place = at[0] * SHARPER, at[1] * SHARPER
        self.pen.text(place, text, colour, font(size, style), anchor=anchor)

    def done(self) -> Image.Image:
        return self.image.resize(SIZE, Image.Resampling.LANCZOS)


# -- parts -----------------------------------------------------------------------------------------------------------
def code_panel(page: Page, code: list[tuple[int, str]], top: int, size: int, marked: Mapping[int, str]) -> None:
    """Numbered lines of code in a font of this size. marked: the colour of a line by its number."""
    high = 2 * size - 6
    page.box((40, top, 1160, top + high * len(code) + 30), PANEL, EDGE)
    for row, (number, line) in enumerate(code):
        y = top + 15 + high * row
        if number in marked:
            page.box((48, y, 1152, y + high), DARK, marked[number], radius=8)
        code_text, _, comment = line.partition("#")
        middle, width = y + high / 2, font(size, "Mono").getlength(code_text) / SHARPER
        page.text((94, middle), str(number), size, DIM, "Mono", anchor="rm")
        page.text((116, middle), code_text, size, TEXT, "Mono", anchor="lm")
        page.text((116 + width, middle), f"#{comment}" if comment else "", size, AMBER, "Mono", anchor="lm")


def lanes(page: Page, progress: float, top: int) -> None:
    """The four ranks. progress: steps that they have begun, so that from 2 on, rank 2 is at the barrier."""
    for rank in range(4):
        y = top + 48 * rank
        page.text((40, y + 20), f"rank {rank}", 22, TEXT, "-Bold", anchor="lm")
        for step in range(3):
            left, filled = 150 + 250 * step, min(max(progress - step, 0), 1)
            page.box((left, y, left + 236, y + 40), PANEL, EDGE, radius=8)
            if filled <= 0:
                continue
            if step < 2:
                page.box((left, y, left + max(236 * filled, 20), y + 40), GREEN, radius=8)
                page.text(
                    (left + 118, y + 20), f"step {step + 1}" if filled == 1 else "", 20, DARK, "-Bold", anchor="mm"
                )
            elif rank != 2:
                page.box((left, y, left + 236, y + 40), AMBER, radius=8)
                page.text((left + 118, y + 20), "waits in all_reduce", 19, DARK, "-Bold", anchor="mm")
        if rank == 2 and progress > 2:
            page.text((650 + 118, y + 20), "has no batch", 19, DIM, anchor="mm")
            page.box((900, y, 1160, y + 40), RED, radius=8)
            page.text((1030, y + 20), "waits in barrier", 19, DARK, "-Bold", anchor="mm")


def terminal(page: Page, command: str, lines: list[str], cursor: bool) -> None:
    page.box((40, 330, 800, 570), DARK, EDGE)
    page.text((64, 350), f"$ {command}", 20, BLUE, "Mono-Bold")
    for row, line in enumerate(lines):
        page.text((64, 386 + 32 * row), line, 20, TEXT, "Mono")
    if cursor:
        top = 386 + 32 * len(lines)
        page.box((64, top, 76, top + 24), TEXT, radius=1)


# -- scenes ----------------------------------------------------------------------------------------------------------
def guess_scene(recording: Mapping[str, Any]) -> Iterator[Frame]:
    """The code, the question, and a choice that most people would make."""
    for chosen, shown, seconds in ((None, 0, 1.8), (None, 4, 2.2), (GUESSED, 4, 1.0)):
        page = Page(1, "Guess before you run")
        code_panel(page, recording["code"], 96, 22, {5: AMBER})
        page.text((40, 496), QUESTION[0], 22, DIM)
        page.text((40, 530), QUESTION[1], 24, TEXT, "-Bold")
        for index, choice in enumerate(CHOICES[:shown]):
            left, top = 460 + 356 * (index % 2), 484 + 66 * (index // 2)
            mine = index == chosen
            page.box((left, top, left + 344, top + 54), BLUE if mine else PANEL, BLUE if mine else EDGE, radius=10)
            page.text((left + 172, top + 27), choice, 20, DARK if mine else TEXT, "-Bold" if mine else "", "mm")
        yield page.done(), seconds


def torchrun_page(recording: Mapping[str, Any], progress: float, seconds: int | None, tick: bool) -> Image.Image:
    page = Page(2, "The same script under torchrun")
    page.text((1160, 52), "recorded, in fast motion", 18, DIM, anchor="rm")
    lanes(page, progress, 104)
    printed = recording["torchrun"]["lines"][: int(progress)]
    terminal(page, recording["torchrun"]["command"], printed, tick)
    if seconds is not None:
        page.text((980, 420), f"{seconds // 60}:{seconds % 60:02}", 76, AMBER, "Mono-Bold", anchor="mm")
        page.text((980, 486), "without a line", 22, DIM, anchor="mm")
    if seconds == recording["torchrun"]["silent_seconds"]:
        page.text((980, 530), "(gloo waits 30 minutes)", 20, DIM, anchor="mm")
        page.text(
            (40, 605), f"The guess was {CHOICES[GUESSED]}. torchrun shows {CHOICES[RIGHT]}.", 24, AMBER, "-Bold", "lm"
        )
    return page.done()


def torchrun_scene(recording: Mapping[str, Any]) -> Iterator[Frame]:
    """Two steps, then the silence that was recorded, in quick motion."""
    for tenth in range(0, 20, 2):
        yield torchrun_page(recording, tenth / 10, None, True), 0.1
    silent = recording["torchrun"]["silent_seconds"]
    yield torchrun_page(recording, 2.5, None, True), 0.7
    for seconds in range(1, silent + 1):
        yield torchrun_page(recording, 2.5, seconds, seconds % 4 < 2), 0.1
    yield torchrun_page(recording, 2.5, silent, True), 2.2


def ranks_scene(recording: Mapping[str, Any]) -> Iterator[Frame]:
    """The message of this course's ranks, and the two lines that it names."""
    found = recording["ranks"]
    for shown in (0, 1, 2):
        page = Page(3, "The same function on this course's ranks")
        page.box((40, 96, 1160, 146), DARK, EDGE)
        page.text((64, 109), found["call"], 20, BLUE, "Mono-Bold")
        if shown:
            page.text((1136, 121), f"after {found['seconds']:.1f} s", 22, GREEN, "-Bold", "rm")
            page.box((40, 158, 1160, 286), PANEL, RED)
            for row, line in enumerate(found["message"].splitlines()[:3]):
                colour = (TEXT, RED, AMBER)[row]
                page.text((60, 172 + 36 * row), line.replace("  ", " ", 1), 18, colour, "Mono-Bold" if row else "Mono")
        marked = {found["line"]: RED, found["waiting_line"]: AMBER} if shown == 2 else {}
        code_panel(page, recording["code"], 298, 19, marked)
        if shown == 2:
            page.text((40, 614), "The report names rank 2 and both lines.", 24, GREEN, "-Bold", "lm")
        yield page.done(), (0.4, 1.8, 3.0)[shown]


def last_scene(recording: Mapping[str, Any]) -> Iterator[Frame]:
    """The chapters, and how to start."""
    titles = recording["chapters"]
    page = Page(0, "Rank by Rank: distributed training on your own machine")
    rows = -(-len(titles) // 2)
    for index, title in enumerate(titles):
        left, top = 40 + 640 * (index // rows), 112 + 50 * (index % rows)
        page.text((left, top), title[:2], 24, BLUE, "Mono-Bold")
        page.text((left + 50, top), title[5:], 24)
    page.box((40, 500, 1160, 590), DARK, EDGE)
    page.text((64, 545), "$ make course", 30, GREEN, "Mono-Bold", anchor="lm")
    page.text((1136, 545), "no GPU needed", 24, DIM, anchor="rm")
    yield page.done(), 2.7


def frames(recording: Mapping[str, Any]) -> list[Frame]:
    scenes = (guess_scene, torchrun_scene, ranks_scene, last_scene)
    return [frame for scene in scenes for frame in scene(recording)]


def palette() -> Image.Image:
    """The colours of all frames: each colour, and its mixtures with those that it is drawn on."""
    pairs = [(under, over) for under, overs in PAIRS.items() for over in overs]
    pairs += [(light, DARK) for light in (GREEN, AMBER, RED, BLUE)]
    colours: dict[tuple[int, ...], None] = {}
    for under, over in pairs:
        ends = [ImageColor.getrgb(one) for one in (under, over)]
        for part in range(MIXTURES):
            share = part / (MIXTURES - 1)
            colours[tuple(round(a + (b - a) * share) for a, b in zip(*ends, strict=True))] = None
    flat = [channel for colour in list(colours)[:256] for channel in colour]
    image = Image.new("P", (1, 1))
    image.putpalette(flat)
    return image


def draw(recording: Mapping[str, Any]) -> bytes:
    """The moving picture as a GIF that repeats for ever; all frames share one palette, so nothing flickers."""
    drawn, colours = frames(recording), palette()
    flat = [image.quantize(palette=colours, dither=Image.Dither.NONE) for image, _ in drawn]
    durations = [round(1000 * seconds) for _, seconds in drawn]
    file = io.BytesIO()
    flat[0].save(file, "GIF", save_all=True, append_images=flat[1:], duration=durations, loop=0, optimize=False)
    return file.getvalue()
