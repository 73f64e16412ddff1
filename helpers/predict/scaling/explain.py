"""What a measured curve lost, as few parts: the batch, the gradients' ring, stragglers and a shared input.

All in GPU-seconds per sample over those of one GPU, n/S, which is 1 where nothing is lost:
    batch        predicted, nothing fitted: n GPUs with 1/n of a fixed batch are less busy; 0 where the batch grows
    gradients    share * ring: how much of the ring's seconds (costs.seconds) no compute covers; at most 1
    stragglers   sigma * expected maximum of n normal numbers: a step ends with its slowest GPU
    input        a constant * (n - 1): a source, such as a disk, that serves all and slows down by as much for each
The three are fitted by least squares on relative errors, none below 0. Low and high: a sum of
parts in which this one is so small or so large misses no number by more than its digits, or than the best fit's worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product

import numpy as np

from helpers.costs import seconds as cost_seconds
from helpers.predict.scaling.laws import check_rows, say
from helpers.predict.time.convolutions import RESNET_152, ResNet, resnet_step
from helpers.records.checks import check_one_of
from helpers.specs import GPU, GPUS, Cluster, Link
from helpers.specs.checks import check_count, check_divides
from helpers.units import format_seconds

SOURCES_GPUS, SOURCES_SPEEDUPS = (1, 2, 4, 8, 16), (1.0, 1.8, 3.5, 6.2, 11.0)
HDR = Link.from_gigabits(200, latency=5e-6, name="InfiniBand HDR")
LIMITS = (1.0, np.inf, np.inf)  # of gradients, stragglers, input


@lru_cache
def expected_maximum(n: int) -> float:
    """Of n standard normal numbers: the integral of 1 - F^n over what is above 0, less that of F^n below."""
    check_count("expected_maximum", "n", n)
    x = np.linspace(-9, 9, 18_001)
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(x))]) ** n
    return float(np.trapezoid(np.heaviside(x, 0.5) - below, x))


@dataclass(frozen=True, kw_only=True)
class Share:
    """A part. lost: at each count, in steps of one GPU. low, high: at the largest count, within the printed digits."""

    name: str
    lost: tuple[float, ...]
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, repr=False)
class CurveFit:
    """step: seconds on one GPU. ring: seconds of the gradients' sum at each count. ring_alone: speed-ups if the ring

    were all that is lost and nothing covered it. residues: measured over fitted, less one.
    """

    gpus: tuple[int, ...]
    measured: tuple[float, ...]
    fitted: tuple[float, ...]
    step: float
    ring: tuple[float, ...]
    ring_alone: tuple[float, ...]
    parts: tuple[Share, ...]

    @property
    def residues(self) -> tuple[float, ...]:
        return tuple(real / said - 1 for real, said in zip(self.measured, self.fitted, strict=True))

    @property
    def exposed(self) -> float:
        """The share of the ring's seconds that no compute covers."""
        return self.parts[1].lost[-1] / (self.gpus[-1] / self.ring_alone[-1] - 1)

    def __repr__(self) -> str:
        ring, most = format_seconds(self.ring[-1]), self.gpus[-1]
        lines = [
            say("curve.ring", n=most, ring=ring, step=format_seconds(self.step), alone=self.ring_alone[-1]),
            say("curve.lost", n=most, found=self.measured[-1], lost=most / self.measured[-1] - 1),
        ]
        for part in self.parts[self.parts[0].lost[-1] == 0 :]:  # the batch may grow, and then costs nothing
            values = {"lost": part.lost[-1], "low": part.low, "high": part.high, "exposed": self.exposed}
            lines.append(say(f"curve.{part.name}", **values))
        lines.append(say("curve.residue", off=max(map(abs, self.residues)), rows=len(self.gpus)))
        return "\n".join(lines)


def explain_curve(
    gpus: Sequence[int] = SOURCES_GPUS,
    speedups: Sequence[float] = SOURCES_SPEEDUPS,
    *,
    images: int = 64,
    kind: str = "weak",
    link: Link = HDR,
    model: ResNet = RESNET_152,
    gpu: GPU = GPUS["A100"],
    half_digit: float = 0.05,
) -> CurveFit:
    """The parts of a curve that begins with 1 GPU. images: of a step on one GPU; "strong" shares them out among all.

    Every ring runs over `link`, as if each GPU were a node: the most that communication can cost. The images and the
    kind are guesses where a table does not say them; so try others. half_digit: how far rounding may have moved.
    """
    check_rows("explain_curve", gpus, speedups, at_least=4)
    check_one_of("explain_curve", "kind", kind, ("strong", "weak"))
    if list(gpus) != sorted(gpus) or gpus[0] != 1:
        raise ValueError(f"explain_curve: the counts are {list(gpus)}; put them in order, beginning with 1 GPU")
    if not 0 <= half_digit < min(speedups):
        raise ValueError(f"explain_curve: half_digit is {half_digit!r}; give 0.05 where one digit is printed")
    counts, found = np.array(gpus), np.array(speedups, float)
    steps = np.array([_alone(model, images, count if kind == "strong" else 1, gpu, link) for count in gpus])
    same = np.ones(len(counts)) if kind == "weak" else counts  # GPU-seconds of a step -> of a sample
    ring = np.array([cost_seconds("all_reduce", 4 * model.num_params, count, link) for count in gpus])
    busy = steps * same / steps[0]
    slowest = busy * np.array([expected_maximum(count) for count in gpus])
    rows = np.stack([ring * same / steps[0], slowest, counts - 1.0], axis=1)
    best = _least(rows * (found / counts)[:, None], (counts / found - busy) * found / counts)
    total = busy + rows @ best
    off = np.maximum(half_digit / found, np.abs(found * total / counts - 1).max())
    ends = [counts / found / (1 + off) - busy, counts / found / (1 - off) - busy]
    ranges = _ranges(rows[1:], ends[0][1:], ends[1][1:], best) * rows[-1]
    lost = [busy - 1, *(rows * best).T]
    spans = [(lost[0][-1], lost[0][-1]), *ranges.T]
    return CurveFit(
        gpus=tuple(gpus), measured=tuple(map(float, speedups)), fitted=tuple((counts / total).tolist()),
        step=float(steps[0]), ring=tuple(ring.tolist()), ring_alone=tuple((counts / (1 + rows[:, 0])).tolist()),
        parts=tuple(
            Share(name=name, lost=tuple(one.tolist()), low=float(span[0]), high=float(span[1]))
            for name, one, span in zip(("batch", "gradients", "stragglers", "input"), lost, spans, strict=True)
        ),
    )  # fmt: skip


def _alone(model: ResNet, images: int, among: int, gpu: GPU, link: Link) -> float:
    """Seconds of a GPU's step without communication."""
    check_divides("explain_curve", "GPUs", among, "images", images)
    one = Cluster(gpu=gpu, gpus_per_node=1, num_nodes=1, intra=link, inter=link)
    return resnet_step(model, images // among, one).seconds


def _least(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Least squares with each constant from 0 to its limit: every choice of those that stand at an end is tried."""
    found = []
    for ends in product((None, 0.0, *LIMITS[:1]), (None, 0.0), (None, 0.0)):
        constants = np.array([end or 0.0 for end in ends])
        free = [place for place, end in enumerate(ends) if end is None]
        constants[free] = np.linalg.lstsq(rows[:, free], wanted - rows @ constants, rcond=None)[0]
        if (constants >= -1e-12).all() and (constants <= LIMITS).all():
            found.append((float(((wanted - rows @ constants) ** 2).sum()), tuple(np.maximum(constants, 0))))
    return np.array(min(found)[1])


def _ranges(rows: np.ndarray, low: np.ndarray, high: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """(lowest, highest) of each constant with low <= rows @ constants <= high: they lie on corners of that body."""
    sides = np.concatenate([rows, -rows, -np.eye(3), np.eye(3)[:1]])
    ends = np.concatenate([high, -low, np.zeros(3), LIMITS[:1]])
    corners = [inside]
    for chosen in map(list, combinations(range(len(sides)), 3)):
        if abs(np.linalg.det(sides[chosen])) > 1e-12:
            corner = np.linalg.solve(sides[chosen], ends[chosen])
            if (sides @ corner <= ends + 1e-9).all():
                corners.append(corner)
    return np.maximum(0.0, [np.min(corners, axis=0), np.max(corners, axis=0)]) + 0.0  # no -0.0
