"""The dials of chapter 04: numbers of a real GPT, a format and a loss scale, and what survives."""

from __future__ import annotations

from collections.abc import Mapping

from helpers.draw import Scene, magnitudes_scene
from helpers.draw.number_formats import percent, scale_text, values_word
from helpers.learner.words import book
from helpers.predict.precision import NUMBER_FORMATS, SCALES, Survival, best_scale, recorded_magnitudes, surviving
from helpers.records import Magnitudes
from helpers.widgets.dials import choice, dial
from helpers.widgets.explorer import Explorer, Rows

say = book("precision")
UNSCALED = ("weights", "activations")  # of forward: the loss is not there yet, so its scale is not in them
DEFAULT = "gradients of activations"


class PrecisionExplorer(Explorer):
    """What a format keeps of a step's numbers. Without a front end: `.scale.value = 2.0**16`, then `.sentence`.

    magnitudes: a Magnitudes, or a dict of them by name, such as `record_magnitudes` gives; by default those recorded
    from a GPT of 10.7 M parameters. Dials: `values` (which of them), `format` (a key of NUMBER_FORMATS), `scale` (the
    loss scale, 1 to 2**24). ValueError for no magnitudes.
    """

    TEXT = "[widget] PrecisionExplorer: what a number format keeps of a GPT's numbers, with dials for format and scale"

    def __init__(self, magnitudes: Magnitudes | Mapping[str, Magnitudes] | None = None) -> None:
        known = recorded_magnitudes() if magnitudes is None else magnitudes
        self._known = {known.name: known} if isinstance(known, Magnitudes) else dict(known)
        if not self._known:
            raise ValueError("PrecisionExplorer got no magnitudes; give a Magnitudes, or leave them out")
        start = DEFAULT if DEFAULT in self._known else next(iter(self._known))
        self.values = choice(
            [(values_word(name), name) for name in self._known], start, say("values"), tooltip=say("which")
        )
        self.format = dial(tuple(NUMBER_FORMATS), "fp16", say("format"), tooltip=say("kept"))
        scales = [(scale_text(scale), scale) for scale in SCALES]
        self.scale = dial(scales, 1.0, say("scale"), tooltip=say("multiplied"))
        super().__init__((self.values, self.format, self.scale))

    @property
    def magnitudes(self) -> Magnitudes:
        """Those of the dial."""
        return self._known[self.values.value]

    @property
    def applied_scale(self) -> float:
        """The loss scale where it reaches these values; 1 for what forward computes."""
        return 1.0 if self.magnitudes.name in UNSCALED else self.scale.value

    @property
    def survival(self) -> Survival:
        """The shares of the dials as they stand."""
        return surviving(self.magnitudes, self.format.value, self.applied_scale)

    @property
    def scene(self) -> Scene:
        """The picture of the dials as they stand; its axis stays while they move."""
        lowest = min(one.lowest for one in self._known.values())
        highest = max(one.highest + (0 if one.name in UNSCALED else 24) for one in self._known.values())
        window = (min(lowest, -27) - 1, max(highest, 17) + 1)
        return magnitudes_scene(self.magnitudes, self.format.value, self.applied_scale, window=window)

    @property
    def sentence(self) -> str:
        """What survives in percent; what it was unscaled, or which scale would keep most."""
        name, found = self.format.value, self.survival
        times = "" if self.applied_scale == 1 else say("times", scale=scale_text(self.applied_scale))
        values = values_word(self.magnitudes.name).capitalize()
        return say("sentence", values=values, times=times, name=name, **_shares(found), advice=self._advice(found))

    def _advice(self, found: Survival) -> str:
        if self.magnitudes.name in UNSCALED:
            return say("unscaled")
        before, best = surviving(self.magnitudes, self.format.value), best_scale(self.magnitudes, self.format.value)
        if found.overflow and self.applied_scale > 1:
            return say("skipped")
        if best == 1 or before.normal == 1:
            return say("enough")
        if self.applied_scale > 1:
            return say("without", share=percent(before.zero))
        after = surviving(self.magnitudes, self.format.value, best)
        return say("best", scale=scale_text(best), share=percent(after.normal))

    @property
    def rows(self) -> Rows:
        """The same for every format."""
        every = {name: surviving(self.magnitudes, name, self.applied_scale) for name in NUMBER_FORMATS}
        return [
            {say("format"): name} | {say(f"fate.{fate}"): share for fate, share in _shares(one).items()}
            for name, one in every.items()
        ]


def _shares(found: Survival) -> dict[str, str]:
    return {fate: percent(getattr(found, fate)) for fate in ("normal", "subnormal", "zero", "overflow")}
