"""Provides PrecisionExplorer: which values of a GPT's training step a number format keeps, at any loss scale.

A value can stay normal, become subnormal (less precise), underflow to zero or overflow; its fate is one of these. The
loss scale is the number by which mixed precision multiplies the loss, and with it every gradient. Magnitudes are a
histogram of absolute values by powers of two, from `lowest` to `highest`. Chapter 04 uses it.

Explorer, the base class, shows `sentence`, `scene` (a picture as plain data) and `rows` (a table), and computes them
anew whenever a dial changes. A ValueError in one of them becomes a message instead of the picture. A saved notebook
keeps TEXT and a picture.
"""

from __future__ import annotations

from collections.abc import Mapping

from helpers.draw import Scene, magnitudes_scene
from helpers.draw.chapters.amp import percent, scale_text, values_word
from helpers.learner.words import book
from helpers.predict.precision import NUMBER_FORMATS, SCALES, Survival, best_scale, recorded_magnitudes, surviving
from helpers.records import Magnitudes
from helpers.widgets.controls import choice, dial
from helpers.widgets.explorer import Explorer, Rows

words = book("precision")  # what a reader sees, by name, in the learner's language: learner/words/precision.yaml
UNSCALED = ("weights", "activations")  # from forward, before the loss exists, so they do not contain its scale
DEFAULT = "gradients of activations"  # the values that are shown first, because they underflow most in fp16


class PrecisionExplorer(Explorer):
    """What a format keeps of the values of one step. Without a front end: `.scale.value = 2.0**16`, then `.sentence`.

    magnitudes: a Magnitudes, or a dict of them by name, such as `record_magnitudes` gives; by default those recorded
    from a GPT of 10.7 M parameters. Dials: `values` (which of them), `format` (a key of NUMBER_FORMATS), `scale` (the
    loss scale, 1 to 2**24). Raises ValueError for no magnitudes.
    """

    TEXT = "[widget] PrecisionExplorer: what a number format keeps of a GPT's values, with dials for format and scale"

    def __init__(self, magnitudes: Magnitudes | Mapping[str, Magnitudes] | None = None) -> None:
        given = recorded_magnitudes() if magnitudes is None else magnitudes
        self._magnitudes = {given.name: given} if isinstance(given, Magnitudes) else dict(given)
        if not self._magnitudes:
            raise ValueError("PrecisionExplorer got no magnitudes; give a Magnitudes, or leave them out")
        start = DEFAULT if DEFAULT in self._magnitudes else next(iter(self._magnitudes))
        # The texts named as tooltips say in a few words what each dial means.
        self.values = choice(self._magnitudes, start, words("values"), label=values_word, tooltip=words("which"))
        self.format = dial(tuple(NUMBER_FORMATS), "fp16", words("format"), tooltip=words("kept"))
        self.scale = dial(SCALES, 1.0, words("scale"), label=scale_text, tooltip=words("multiplied"))
        super().__init__((self.values, self.format, self.scale))

    @property
    def magnitudes(self) -> Magnitudes:
        """The magnitudes that the dial `values` chooses."""
        return self._magnitudes[self.values.value]

    @property
    def applied_scale(self) -> float:
        """The loss scale if it multiplies these values; 1 for those that forward computes."""
        return 1.0 if self.magnitudes.name in UNSCALED else self.scale.value

    @property
    def survival(self) -> Survival:
        """The shares of normal, subnormal, zero and overflowing values."""
        return surviving(self.magnitudes, self.format.value, self.applied_scale)

    @property
    def scene(self) -> Scene:
        """The histogram; its axis does not depend on the dials."""
        lowest = min(one.lowest for one in self._magnitudes.values())
        # The largest loss scale is 2**24, which moves values up by 24 powers of two.
        highest = max(one.highest + (0 if one.name in UNSCALED else 24) for one in self._magnitudes.values())
        # In powers of two, the axis always covers the range of fp16 and a little more. fp16 rounds values below 2**-25,
        # half of its smallest number, to 0, and it overflows from about 2**16 on; -27 and 17 lie beyond these two
        # bounds. The last 1 is a margin of one power of two at each end.
        window = (min(lowest, -27) - 1, max(highest, 17) + 1)
        return magnitudes_scene(self.magnitudes, self.format.value, self.applied_scale, window=window)

    @property
    def sentence(self) -> str:
        """What the format keeps in percent, and advice on the loss scale."""
        name, survival = self.format.value, self.survival
        times = "" if self.applied_scale == 1 else words("times", scale=scale_text(self.applied_scale))
        values = values_word(self.magnitudes.name).capitalize()
        shares, advice = _shares(survival), self._advice(survival)
        return words("sentence", values=values, times=times, name=name, **shares, advice=advice)

    def _advice(self, survival: Survival) -> str:
        """A sentence on the loss scale: whether these values have one, whether it is too high, or which is best."""
        if self.magnitudes.name in UNSCALED:
            return words("unscaled")
        before, best = surviving(self.magnitudes, self.format.value), best_scale(self.magnitudes, self.format.value)
        if survival.overflow and self.applied_scale > 1:
            return words("skipped")  # the scale is too high: training would skip the step
        if best == 1 or before.normal == 1:
            return words("enough")  # the values need no scale
        if self.applied_scale > 1:
            return words("without", share=percent(before.zero))  # what would underflow without the scale
        after = surviving(self.magnitudes, self.format.value, best)
        return words("best", scale=scale_text(best), share=percent(after.normal))

    @property
    def rows(self) -> Rows:
        """One row per format, with its own values of the shares that the picture shows for the chosen format."""
        every = {name: surviving(self.magnitudes, name, self.applied_scale) for name in NUMBER_FORMATS}
        return [
            {words("format"): name} | {words(f"fate.{fate}"): share for fate, share in _shares(one).items()}
            for name, one in every.items()
        ]


def _shares(survival: Survival) -> dict[str, str]:
    """The share of the values with each fate, as text."""
    return {fate: percent(getattr(survival, fate)) for fate in ("normal", "subnormal", "zero", "overflow")}
