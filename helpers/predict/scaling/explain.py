"""What a measured curve lost, as few parts: the batch, the gradients' ring, stragglers and a shared input.

All in GPU-seconds per sample over those of one GPU, n/S, which is 1 where nothing is lost:
    batch        predicted, nothing fitted: n GPUs with 1/n of a fixed batch are less busy; 0 where the batch grows
    gradients    share * ring: how much of the ring's seconds (costs.seconds) no compute covers; at most 1
    stragglers   sigma * expected maximum of n normal numbers: a step ends with its slowest GPU
    input        a constant * (n - 1): a source, such as a disk, that serves all and slows down by as much for each
Every mix of the three is tried on a grid; the best has the least squares of relative errors. Low and high: mixes with
so little or so much of a part miss no number by more than its digits, or than the best mix's worst miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from helpers.predict.scaling.laws import check_rows, say
from helpers.predict.time.convolutions import RESNET_152, resnet_step
from helpers.quantities.costs import seconds as cost_seconds
from helpers.quantities.units import format_seconds
from helpers.records.checks import check_one_of
from helpers.specs import GPUS, Cluster, Link
from helpers.specs.checks import check_count, check_divides

SOURCES_GPUS, SOURCES_SPEEDUPS = (1, 2, 4, 8, 16), (1.0, 1.8, 3.5, 6.2, 11.0)
HDR = Link.from_gigabits(200, latency=5e-6, name="InfiniBand HDR")
GRID = 61  # values of each part that are tried


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
    """A part. lost: at each count, in steps of one GPU. low, high: at the largest count, what fits as well."""

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
    half_digit: float = 0.05,
) -> CurveFit:
    """The parts of a curve of ResNet-152 on A100 that begins with 1 GPU.

    images: of a step on one GPU; "weak" gives as many to each, "strong" shares them out. Every ring runs over `link`,
    as if each GPU were a node: the most that communication can cost. Images and kind are guesses where a table does not
    say them; so try others. half_digit: how far rounding may have moved a speed-up.
    """
    check_rows("explain_curve", gpus, speedups, at_least=4)
    check_one_of("explain_curve", "kind", kind, ("strong", "weak"))
    if list(gpus) != sorted(gpus) or gpus[0] != 1 or not 0 <= half_digit < min(speedups):
        raise ValueError(
            f"explain_curve: counts {list(gpus)} and half_digit={half_digit!r}; order the counts, from 1 GPU on, "
            "and give 0.05 where one digit is printed"
        )
    counts, found = np.array(gpus, float), np.array(speedups, float)
    step, ring, busy, rings = _costs(gpus, images, kind, link)
    rows = np.stack([rings, busy * [expected_maximum(n) for n in gpus], counts - 1])  # (3, counts)
    total, best, *ends = _mixes(busy, rows, counts / found, half_digit / found)
    lost, spans = [busy - 1, *best], [(busy[-1] - 1,) * 2, *zip(*ends, strict=True)]
    parts = [
        Share(name=name, lost=tuple(one.tolist()), low=float(span[0]), high=float(span[1]))
        for name, one, span in zip(("batch", "gradients", "stragglers", "input"), lost, spans, strict=True)
    ]
    return CurveFit(
        gpus=tuple(gpus), measured=tuple(map(float, speedups)), fitted=tuple((counts / total).tolist()), step=step,
        ring=tuple(ring.tolist()), ring_alone=tuple((counts / (1 + rings)).tolist()), parts=tuple(parts),
    )  # fmt: skip


def _costs(gpus: Sequence[int], images: int, kind: str, link: Link) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Seconds of a step on one GPU and of the ring on each; GPU-seconds per sample of both, over one GPU's step."""
    among = list(gpus) if kind == "strong" else [1] * len(gpus)
    check_divides("explain_curve", "GPUs", max(among), "images", images)
    alone = Cluster(gpu=GPUS["A100"], gpus_per_node=1, num_nodes=1, intra=link, inter=link)
    steps = np.array([resnet_step(RESNET_152, images // n, alone).seconds for n in among])
    ring = np.array([cost_seconds("all_reduce", 4 * RESNET_152.num_params, n, link) for n in gpus])
    return float(steps[0]), ring, steps * among / steps[0], ring * among / steps[0]


def _mixes(busy: np.ndarray, rows: np.ndarray, wanted: np.ndarray, digits: np.ndarray) -> tuple[np.ndarray, ...]:
    """Every mix of the three on a grid: the best one's sum and parts; low and high of each part at the last count."""
    most = np.append(1.0, max(wanted[-1] - 1, 0.01) * 1.2 / rows[1:, -1])  # the ring is there once
    mixes = np.stack(np.meshgrid(*(np.linspace(0, end, GRID) for end in most)), axis=-1).reshape(-1, 3)
    off = (busy + mixes @ rows) / wanted - 1  # (mixes, counts)
    best = int((off**2).sum(axis=1).argmin())
    alike = mixes[(np.abs(off) <= np.maximum(digits, np.abs(off[best]).max())).all(axis=1)] * rows[:, -1]
    return busy + mixes[best] @ rows, rows * mixes[best][:, None], alike.min(axis=0), alike.max(axis=0)
