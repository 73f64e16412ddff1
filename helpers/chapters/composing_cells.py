"""Draws what the cells of chapter 09 measure: losses, bytes by layout, norms, the effect of one seed, sizes of files.

composing.py has the runs themselves. A function returns a picture; where it returns more, its docstring says what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from helpers.chapters.composing import (
    LAYOUTS,
    REPLICAS,
    bytes_of_busiest_rank,
    checked_bytes,
    gpt_of_seeds,
    losses_in_one_process,
)
from helpers.draw import Axis, Part, Scene, curves_scene, parts_scene
from helpers.ranks import Ranks

# A kind of memory only gives its colour to an axis here.
AXIS_KINDS = {"tp": "activations", "dp": "gradients", "pp": "buffers"}
UP = "blocks.0.feed_forward.up.weight"  # the matrix whose shards the section on one seed compares


def losses_scene(losses: Mapping[str, Sequence[float]], title: str) -> Scene:
    """A curve for each way to train: the losses of 16 steps."""
    curves = {name: list(enumerate(each, 1)) for name, each in losses.items()}
    axes = dict(x=Axis(name="step", ticks=(1, 4, 8, 12, 16)), y=Axis(name="loss", ticks=(3.2, 3.5, 3.8, 4.1, 4.4)))
    return curves_scene(curves, **axes, title=title)


def share_in_words(share: float) -> str:
    """Say what share of the parameters it is, as a choice of 09.late_share if it is the expected one."""
    # A twentieth is 0.05.
    return "about a twentieth" if 0.04 < share < 0.06 else f"{share:.1%}"


def effect_of_the_world(over_dp: Sequence[float], over_world: Sequence[float], half: Sequence[float]) -> str:
    """Say what the losses tell about a mean over the world, as a choice of 09.world.

    half: the losses if half the mean over dp is used, which AdamW must hide. AssertionError where it does not.
    """
    # AdamW hides a factor of the gradients, but for its eps, so these losses are equal to 0.005.
    assert max(abs(one - two) for one, two in zip(half, over_dp, strict=True)) < 0.005
    # Slower by far more than that, so that one sees it in the picture.
    is_slower = over_world[0] > over_world[-1] > over_dp[-1] + 0.2
    return "it trains, and learns more slowly" if is_slower else "nothing: the losses are the same"


def layouts_scene(counted: Mapping[str, float]) -> Scene:
    """Bytes of the busiest rank in each layout, by axis. AssertionError where other bytes were counted than predicted.

    counted: the bytes of a layout by its name in LAYOUTS.
    """
    sent = {name: bytes_of_busiest_rank(LAYOUTS[name], 16) for name in counted}
    totals = {name: sum(by_axis.values()) for name, by_axis in sent.items()}
    assert totals == counted
    rows = {
        name: [Part(text=axis, kind=AXIS_KINDS[axis], size=size) for axis, size in by_axis.items()]
        for name, by_axis in sent.items()
    }
    ends = {name: f"{total / 1e6:.2f} MB" for name, total in totals.items()}
    legend = {kind: axis for axis, kind in AXIS_KINDS.items()}
    return parts_scene(rows, ends=ends, legend=legend, title="Sent per step by the rank that sends most, by axis")


def crossover_scene(ranks: Ranks) -> tuple[Scene, int]:
    """MB that a rank sends by number of sequences, with dp 4 and with dp 2 x tp 2.

    Returns the picture, and the number of sequences from which on dp 4 sends less.
    """
    mixed, numbers, curves = "dp 2 × tp 2", (4, 8, 12, 16, 20, 24), {}
    for name in ("dp 4", mixed):
        curves[name] = [(n, sum(bytes_of_busiest_rank(LAYOUTS[name], n).values()) / 1e6) for n in numbers]
        assert checked_bytes(ranks, LAYOUTS[name], 4) == round(curves[name][0][1] * 1e6)
    pairs = zip(curves[mixed], curves["dp 4"], strict=True)
    first = next(n for (n, with_tp), (_, without_tp) in pairs if without_tp < with_tp)
    # dp 4 always sends the same, and tp grows linearly, so the curves cross where this line has the height `flat`.
    flat, (start, *_, end) = curves["dp 4"][0][1], curves[mixed]
    equal = start[0] + (flat - start[1]) * (end[0] - start[0]) / (end[1] - start[1])
    scene = curves_scene(
        curves,
        x=Axis(name="sequences of 64 tokens per step", ticks=numbers),
        y=Axis(name="MB sent by a rank", ticks=(0, 2, 4, 6, 8, 10)),
        paints={"dp 4": "gradients", mixed: "activations"},  # colours, by the beginning of a curve's name
        marks=[(equal, flat, f"equal at {equal:.1f}, so from {first} on")],
        marks_below=True,
        title="The bytes of tp grow with the batch, those of dp do not",
    )
    return scene, first


def norms_scene(own: Sequence[float], added: float, trainer: float, alone: float) -> Scene:
    """The norm of each rank's own gradients, of all squares added up, of the Trainer, and of one process.

    AssertionError where the Trainer's norm is not the norm in one process.
    """
    assert abs(trainer / alone - 1) < 1e-10
    named = {f"rank {rank}": (norm, "other") for rank, norm in enumerate(own)}
    named |= {
        "all squares added": (added, "sign"),
        "Trainer, one process": (trainer, "parameters"),
    }
    rows = {name: [Part(text="", kind=kind, size=norm)] for name, (norm, kind) in named.items()}
    ends = {name: f"{norm:.3f}" for name, (norm, _) in named.items()}
    return parts_scene(rows, ends=ends, title="The norm of the gradients of one step")


def one_seed_scene(live: Sequence[tuple[list[float], dict[str, Tensor]]]) -> tuple[Scene, str]:
    """Draw losses of 300 steps of a model whose shards are equal at first, and of a usual one.

    live: losses and shards of each tp rank after a few steps with one seed, which one process must reproduce. Returns
    the picture, and how equal the shards of one matrix are, as a choice of 09.seed.
    """
    model, curves = gpt_of_seeds(one_seed=True), {}
    for name, one in {"four seeds": gpt_of_seeds(one_seed=False), "one seed": model}.items():
        losses = losses_in_one_process(one, 300)
        curves[name] = [(step + 20, sum(losses[step : step + 20]) / 20) for step in range(0, 300, 20)]
    assert max(abs(a - b) for a, b in zip(losses, live[0][0], strict=False)) < 1e-4, "one process does what ranks do"
    first, *others = (shards[UP] for _, shards in live)
    one, *more = model.get_parameter(UP).detach().chunk(REPLICAS)
    is_equal = all(torch.equal(shard, first) for shard in others)
    is_equal &= all(torch.allclose(shard, one, atol=1e-3) for shard in more)
    scene = curves_scene(
        curves,
        x=Axis(name="step", ticks=(20, 100, 200, 300)),
        y=Axis(name="loss, mean of 20 steps", ticks=(1.5, 2, 2.5, 3, 3.5, 4)),
        title="One process, trained as four tp ranks would: the curves move apart slowly",
    )
    return scene, "equal, to the last bit" if is_equal else "different"


def hidden_in_words(exposed: float, seconds: float) -> str:
    """Say how much of a link's time is hidden behind compute, as a choice of 09.hidden.

    exposed: seconds in which the rank waited. seconds: of the messages on the slow link.
    """
    return "none of it" if exposed >= seconds else "about half of it" if exposed > seconds / 4 else "nearly all of it"


def exposed_means() -> str:
    """What the word "exposed" in the picture of two steps means."""
    return "Exposed: rank 0 waits for a link or for another rank, and computes nothing."


def files_scene(files: Mapping[str, int], single: int) -> tuple[Scene, str]:
    """Draw the sizes in bytes of the files of eight ranks and of one process; their ratio is a choice of 09.files."""
    rows = {name: [Part(text="", kind="parameters", size=size)] for name, size in files.items()}
    rows |= {"one process": [Part(text="", kind="other", size=single)]}
    ends = {name: f"{parts[0].size / 1e3:,.0f} kB" for name, parts in rows.items()}
    ratio = sum(files.values()) / single
    scene = parts_scene(rows, ends=ends, title="Who writes what: weights and AdamW's state")
    return scene, "as large" if 0.95 < ratio < 1.05 else f"{ratio:.2f} times as large"
