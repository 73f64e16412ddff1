"""05.checkpoint: keep the inputs of a block, compute the rest once more in backward, with the same dropout.

The check's block notes each call: where the generator of random numbers stood. Two models go forward before the first
one goes back.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from helpers.grading.drawing import CaseGenerator, Variations, with_layout
from helpers.grading.kit.judging import expect, expect_equal, expect_tensor, expect_tensors
from helpers.grading.kit.meter import MemoryMeter, describe_if_detached, one_thread
from helpers.grading.memory import LAB
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

NUM_BLOCKS, ROWS, DROPOUT = 4, 96, 0.3
KILOBYTES = 8192  # beside each input: the state of the generator is 5 of them
PEAK, KEPT = 0.75, 0.5  # of what the same blocks hold without recomputation; who holds half of it keeps the first pass
Block = Callable[[Tensor, Tensor], Tensor]


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Four blocks in a row; each also reads positions, whole numbers, which have no gradient.

    The second model works on two sequences at once, and one of its parameters is frozen.
    """
    hidden, num_positions = rng.integer(12, 16), rng.integer(5, 8)
    shapes = {"table": (num_positions, hidden), "up": (hidden, 4 * hidden), "down": (4 * hidden, hidden)}
    weights = {
        f"{name}{i}": rng.tensor(*shape) / shape[0] ** 0.5 for i in range(NUM_BLOCKS) for name, shape in shapes.items()
    }
    of_x = (2, ROWS // 2, hidden) if rng.case.number else (ROWS, hidden)
    inputs = {"weights": weights, "x": rng.tensor(*of_x), "gradient": rng.tensor(*of_x), "seed": rng.integer(0, 10**6)}
    positions = torch.randint(num_positions, of_x[-2:-1], generator=rng)
    inputs["positions"] = with_layout(positions, rng.case.layouts)
    return [inputs | {"frozen": ["down1"] if rng.case.number else []}]


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


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    torch.manual_seed(inputs["seed"])
    return (yield from run(submitted, inputs, None))


def run(submitted, inputs: dict[str, Any], generator: torch.Generator | None) -> Iterator[None]:
    """Forward and backward through all blocks, and what was held meanwhile."""
    weights = {name: value.clone() for name, value in inputs["weights"].items()}
    for name, value in weights.items():
        value.requires_grad_(name not in inputs["frozen"])
    x, gradient, positions = (inputs[name].clone() for name in ("x", "gradient", "positions"))
    x.requires_grad_()
    calls: list[list[int]] = [[] for _ in range(NUM_BLOCKS)]
    meter, y = MemoryMeter([*weights.values(), x, gradient, positions]), x
    with meter:
        for number in range(NUM_BLOCKS):
            y = submitted(block_of(weights, number, calls, generator), y, positions)
            if describe_if_detached(y):
                return {"returned": describe_if_detached(y)}
        held, between = meter.current_bytes, torch.rand(2, generator=generator).tolist()
    done = {"output": y.detach().clone(), "held": held, "between": between}
    source = generator or torch.default_generator
    state = source.get_state()
    yield
    source.set_state(state)  # another model's turn moved it
    with meter:
        y.backward(gradient)
        del y
    done |= {"after": torch.rand(2, generator=generator).tolist(), "peak": meter.peak_bytes}
    gradients = {name: value.grad for name, value in weights.items()}
    return done | {"calls": calls, "x": x.grad, "gradients": gradients}


def judged(way: Callable[..., Tensor], inputs: dict[str, Any]) -> dict[str, Any]:
    """Our own run, with a generator of its own: a class is judged in several threads, and torch's is one for all."""
    generator = torch.Generator().manual_seed(inputs["seed"])
    with one_thread():
        return to_its_end(run(partial(way, generator), inputs, generator))


def to_its_end(steps: Iterator[None]) -> Any:
    """What an `act` that takes turns returns, if nobody else has one."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


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


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    inputs, got = world.inputs[0], world.outputs[0]
    if "returned" in got:
        yield Judgement(ok=False, message=RETURNED.format(got["returned"]), mistakes=("detached_output",))
        return
    right, ones = (judged(way, inputs) for way in (plain, WithOnes.apply))
    yield from judge_calls(right, got)
    yield expect_tensor(OUTPUT, right["output"], got["output"])
    ignored = {"incoming_gradient_ignored": ones["x"]}
    yield expect_tensor(INPUT, right["x"], got["x"], mistakes=ignored)
    nothing = {"parameters_get_nothing": dict.fromkeys(right["gradients"])}
    ignored = {"incoming_gradient_ignored": ones["gradients"]}
    followed = {name: value for name, value in right["gradients"].items() if value is not None}
    yield from expect_tensors(PARAMETER, followed, got["gradients"], mistakes=nothing | ignored)
    for name in inputs["frozen"]:
        yield expect_equal(PARAMETER.format(name), None, got["gradients"].get(name))
    yield expect_equal(AFTER, right["after"], got["after"], mistakes={"generator_moved": got["after"]})
    yield from judge_bytes(inputs, right, got)


def judge_calls(right: dict[str, Any], got: dict[str, Any]) -> Iterator[Judgement]:
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


def judge_bytes(inputs: dict[str, Any], right: dict[str, Any], got: dict[str, Any]) -> Iterator[Judgement]:
    """Between forward and backward, and at the peak; beside it what is held without recomputation."""
    most = {"held": NUM_BLOCKS * (inputs["x"].nbytes + KILOBYTES), "peak": PEAK * right["peak"]}
    moments = {"held": ("after the forward pass", "前向之后"), "peak": ("at the peak", "峰值时")}
    for name, (en, zh) in moments.items():
        mine, due, usual = (format_bytes(int(one)) for one in (got[name], most[name], right[name]))
        yield expect(
            got[name] <= most[name],
            f"{en} it holds {mine}, expected at most {due}; without recomputation it is {usual}",
            f"{zh}占用 {mine}，应不超过 {due}；不重算时是 {usual}",
            mistakes=["keeps_activations"] if got["held"] > KEPT * right["held"] else [],
        )


def recognise_failure(failure: RunFailure) -> list[str]:
    """By the words of torch's own errors."""
    return [key for key, words in ERRORS.items() if words in failure.text]


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
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    recognise_failure=recognise_failure,
    hints=LAB.hints(
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
    runs_on="process",
    variations=Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), min_cases=2),
    must_not_change=("x", "positions"),
)
