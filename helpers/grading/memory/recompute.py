"""05.checkpoint: keep the inputs of a block, compute the rest once more in backward, with the same dropout.

The check's block notes each call: where the generator of random numbers stood, and whether gradients were followed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_equal, expect_tensor, expect_tensors
from helpers.grading.kit.meter import Meter, dead_end, one_thread
from helpers.grading.memory import hints
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.units import format_bytes
from helpers.words import Words

NUM_BLOCKS, ROWS, DROPOUT = 4, 96, 0.3
HELD, PEAK = 0.5, 0.75  # of what the same blocks hold without recomputation
Block = Callable[[Tensor, Tensor], Tensor]


def make(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    """Four blocks in a row; each also reads positions, whole numbers, which have no gradient."""
    hidden, num_positions = making.integer(rng, 12, 16), making.integer(rng, 5, 8)
    shapes = {"table": (num_positions, hidden), "up": (hidden, 4 * hidden), "down": (4 * hidden, hidden)}
    weights = {
        f"{name}{i}": making.normal(rng, *shape) / shape[0] ** 0.5
        for i in range(NUM_BLOCKS)
        for name, shape in shapes.items()
    }
    x, gradient = making.normal(rng, ROWS, hidden), making.normal(rng, ROWS, hidden)
    positions = torch.randint(num_positions, (ROWS,), generator=rng)
    seed = making.integer(rng, 0, 10**6)
    return [{"weights": weights, "x": x, "gradient": gradient, "positions": positions, "seed": seed}]


def block_of(
    weights: dict[str, Tensor], number: int, calls: list[list[int]], generator: torch.Generator | None
) -> Block:
    """Block `number`: x (rows, hidden) and positions (rows,) to (rows, hidden), with dropout from `generator`."""
    table, up, down = (weights[f"{name}{number}"] for name in ("table", "up", "down"))

    def block(x: Tensor, positions: Tensor) -> Tensor:
        state = torch.get_rng_state() if generator is None else generator.get_state()
        calls[number].append(zlib.crc32(bytes(state.tolist())))
        wide = torch.tanh((x + table[positions]) @ up)  # (rows, 4 hidden)
        is_kept = torch.empty_like(wide).bernoulli_(1 - DROPOUT, generator=generator)
        return x + (wide * is_kept / (1 - DROPOUT)) @ down

    return block


def act(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    torch.manual_seed(inputs["seed"])
    return run(submitted, inputs, None)


def run(submitted, inputs: dict[str, Any], generator: torch.Generator | None) -> dict[str, Any]:
    """Forward and backward through all blocks, and what was held meanwhile."""
    weights = {name: value.clone().requires_grad_() for name, value in inputs["weights"].items()}
    x, gradient, positions = (inputs[name].clone() for name in ("x", "gradient", "positions"))
    x.requires_grad_()
    calls: list[list[int]] = [[] for _ in range(NUM_BLOCKS)]
    with Meter([*weights.values(), x, gradient, positions]) as meter:
        y = x
        for number in range(NUM_BLOCKS):
            y = submitted(block_of(weights, number, calls, generator), y, positions)
            if dead_end(y):
                return {"returned": dead_end(y)}
        held, between = meter.held, torch.rand(2, generator=generator).tolist()
        result = y.detach().clone()
        (y * gradient).sum().backward()
        del y
        peak = meter.peak
    done = {"output": result, "held": held, "peak": peak, "between": between}
    done["after"] = torch.rand(2, generator=generator).tolist()
    gradients = {name: value.grad for name, value in weights.items()}
    return done | {"calls": calls, "x": x.grad, "gradients": gradients}


def judged(way: Callable[..., Tensor], inputs: dict[str, Any]) -> dict[str, Any]:
    """Our own run, with a generator of its own: a class is judged in several threads, and torch's is one for all."""
    generator = torch.Generator().manual_seed(inputs["seed"])
    with one_thread():
        return run(partial(way, generator), inputs, generator)


def plain(generator: torch.Generator, block: Block, *args: Tensor) -> Tensor:
    """Without recomputation: what everything is compared with."""
    return block(*args)


class WithOnes(torch.autograd.Function):
    """The mistake of a backward that does not look at the gradient that comes in."""

    @staticmethod
    def forward(ctx, generator, block, x, positions):
        ctx.generator, ctx.block, ctx.state = generator, block, generator.get_state()
        ctx.save_for_backward(x, positions)
        return block(x, positions)

    @staticmethod
    def backward(ctx, gradient):
        x, positions = ctx.saved_tensors
        x, now = x.detach().requires_grad_(), ctx.generator.get_state()
        ctx.generator.set_state(ctx.state)
        with torch.enable_grad():
            ctx.block(x, positions).sum().backward()
        ctx.generator.set_state(now)
        return None, None, x.grad, None


def judge(world: World) -> Iterator[Finding]:
    inputs, got = world.inputs[0], world.outputs[0]
    if "returned" in got:
        yield Finding(ok=False, says=RETURNED.format(got["returned"]), mistakes=("detached_output",))
        return
    right, ones = (judged(way, inputs) for way in (plain, WithOnes.apply))
    yield from judge_calls(right, got)
    yield expect_tensor(OUTPUT, right["output"], got["output"])
    ignored = {"incoming_gradient_ignored": ones["x"]}
    yield expect_tensor(INPUT, right["x"], got["x"], mistakes=ignored)
    nothing = {"parameters_get_nothing": dict.fromkeys(right["gradients"])}
    ignored = {"incoming_gradient_ignored": ones["gradients"]}
    yield from expect_tensors(PARAMETER, right["gradients"], got["gradients"], mistakes=nothing | ignored)
    yield expect_equal(AFTER, right["after"], got["after"], mistakes={"generator_moved": got["after"]})
    yield from judge_bytes(right, got)


def judge_calls(right: dict[str, Any], got: dict[str, Any]) -> Iterator[Finding]:
    """Twice a block, at the same place of the generator, and the first time where it stood anyhow."""
    for number, calls in enumerate(got["calls"]):
        often = {"never_recomputes": 1, "recomputed_twice": 3}
        yield expect_equal(CALLS.format(number), 2, len(calls), mistakes=often)
        yield expect(
            calls[:1] == right["calls"][number],
            f"the forward pass of block {number} does not begin where the generator of random numbers stood",
            f"block {number} 的前向没有从随机数生成器当时的状态开始",
            mistakes=["reseeded"],
        )
        yield expect(
            len(set(calls)) == 1,
            f"block {number} is computed again with other random numbers, so with another dropout mask",
            f"block {number} 重算时用了不同的随机数，dropout 掩码也就不同",
            mistakes=["other_mask"],
        )


def judge_bytes(right: dict[str, Any], got: dict[str, Any]) -> Iterator[Finding]:
    """Between forward and backward, and at the peak, beside what is held without recomputation."""
    moments = {"held": (HELD, "after the forward pass", "前向之后"), "peak": (PEAK, "at the peak", "峰值时")}
    for name, (most, en, zh) in moments.items():
        mine, usual = format_bytes(got[name]), format_bytes(right[name])
        yield expect(
            got[name] <= most * right[name],
            f"{en} it holds {mine}; without recomputation it would be {usual}",
            f"{zh}占用 {mine}；不重算时是 {usual}",
            mistakes=["keeps_activations"],
        )


def recognise(trouble: Trouble) -> list[str]:
    """By the words of torch's own errors."""
    return [key for key, words in ERRORS.items() if words in trouble.text]


ERRORS = {
    "without_grad_mode": "does not require grad and does not have a grad_fn",
    "not_detached": "backward through the graph a second time",
    "gradients_miscounted": "returned an incorrect number of gradients",
    "integers_want_no_gradient": "dtype can require gradients",
}
RETURNED = Words(
    en="checkpoint returns {}, expected a tensor that follows gradients",
    zh="checkpoint 返回的是 {}，应为带梯度的张量",
)
CALLS = Words(en="the number of times that block {} is computed", zh="block {} 被计算的次数")
OUTPUT = Words(en="the output of the last block", zh="最后一个 block 的输出")
INPUT = Words(en="the gradient of x", zh="x 的梯度")
PARAMETER = Words(en="the gradient of the parameter {}", zh="参数 {} 的梯度")
AFTER = Words(en="what torch.rand gives after backward", zh="反向之后 torch.rand 的值")
CHECKPOINT = Task(
    key="05.checkpoint",
    signature="checkpoint(function, x, positions)",
    make=make,
    act=act,
    judge=judge,
    recognise=recognise,
    hints=hints.of(
        *ERRORS,
        "detached_output",
        "never_recomputes",
        "recomputed_twice",
        "reseeded",
        "other_mask",
        "incoming_gradient_ignored",
        "parameters_get_nothing",
        "generator_moved",
        "keeps_activations",
    ),
    world_sizes=(1,),
    unit="device",
)
