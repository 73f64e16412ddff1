"""05.count and 05.states: how many parameters a GPT has, and the bytes of a rank before the first token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil
from typing import Any

import torch

from helpers.grading.kit import making
from helpers.grading.kit.judging import expect_equal
from helpers.grading.kit.meter import whole
from helpers.grading.memory import hints
from helpers.grading.task import Finding, Task, Trial, World
from helpers.words import Words

Named = dict[str, int]


# -- 05.count --------------------------------------------------------------------------------------------------------
def make_count(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    """GPTs in which no two sizes are alike."""
    cases = []
    for _ in range(3):
        sizes = {"num_layers": making.integer(rng, 3, 40), "hidden": 64 * making.integer(rng, 3, 60)}
        sizes |= {"vocab": making.integer(rng, 10_000, 60_000), "seq": 128 * making.integer(rng, 3, 30)}
        cases.append(sizes)
    return [{"cases": cases}]


def act_count(submitted, inputs: dict[str, Any], trial: Trial) -> list[Any]:
    return [whole(submitted(*case.values())) for case in inputs["cases"]]


def judge_count(world: World) -> Iterator[Finding]:
    for case, got in zip(world.inputs[0]["cases"], world.outputs[0], strict=True):
        known = {key: mistake(**case) for key, mistake in MISCOUNTS.items()}
        yield expect_equal(PARAMETERS.format(*case.values()), num_params(**case), got, mistakes=known)


def num_params(num_layers: int, hidden: int, vocab: int, seq: int) -> int:
    """Of a GPT-2: biases everywhere, LayerNorm, learned positions, the head is the token table."""
    return num_layers * (12 * hidden**2 + 13 * hidden) + (vocab + seq) * hidden + 2 * hidden


def less(per_layer: Callable[[int], int], outside: Callable[[int, int, int], int] = lambda h, v, s: 0) -> Callable:
    """A count that leaves something out of each layer, and of what is around them."""

    def mistaken(num_layers: int, hidden: int, vocab: int, seq: int) -> int:
        left_out = num_layers * per_layer(hidden) + outside(hidden, vocab, seq)
        return num_params(num_layers, hidden, vocab, seq) - left_out

    return mistaken


MISCOUNTS: dict[str, Callable[..., int]] = {
    "biases_forgotten": less(lambda h: 9 * h),
    "norms_forgotten": less(lambda h: 4 * h, lambda h, v, s: 2 * h),
    "last_norm_forgotten": less(lambda h: 0, lambda h, v, s: 2 * h),
    "projection_forgotten": less(lambda h: h * h + h),
    "feed_forward_narrow": less(lambda h: 6 * h * h + 3 * h),
    "positions_forgotten": less(lambda h: 0, lambda h, v, s: s * h),
    "head_counted_twice": less(lambda h: 0, lambda h, v, s: -v * h),
    "only_matrices": less(lambda h: 13 * h, lambda h, v, s: 2 * h),
}
PARAMETERS = Words(
    en="the number of parameters ({} layers, hidden {}, vocabulary {}, {} positions)",
    zh="参数个数（{} 层，hidden {}，词表 {}，{} 个位置）",
)
COUNT = Task(
    key="05.count",
    signature="num_params(num_layers, hidden, vocab, seq)",
    make=make_count,
    act=act_count,
    judge=judge_count,
    hints=hints.of(*MISCOUNTS),
    world_sizes=(1,),
    unit="device",
)


# -- 05.states -------------------------------------------------------------------------------------------------------
KINDS = ("parameters", "gradients", "optimizer")
BYTES = {"fp32": (4, 4, 8), "mixed": (2, 2, 12), "mixed_fp32_grads": (2, 4, 12)}  # a parameter, with Adam
SHARDED_FROM = {"parameters": 3, "gradients": 2, "optimizer": 1}  # the ZeRO stage; Rajbhandari et al. 2020, figure 1


def make_states(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    """Every precision with every stage; the ranks never divide the parameters."""
    cases = []
    for precision in BYTES:
        for zero in range(4):
            dp = making.integer(rng, 3, 64)
            num_params = dp * making.integer(rng, 10**6, 10**8) + making.integer(rng, 1, dp - 1)
            cases.append({"num_params": num_params, "precision": precision, "zero": zero, "dp": dp})
    return [{"cases": cases}]


def act_states(submitted, inputs: dict[str, Any], trial: Trial) -> list[Any]:
    return [whole(submitted(*case.values())) for case in inputs["cases"]]


def judge_states(world: World) -> Iterator[Finding]:
    """A mistake is recognised in one kind, where it explains all cases of that kind that are wrong."""
    cases, given = world.inputs[0]["cases"], world.outputs[0]
    given = [one if isinstance(one, dict) else {} for one in given]
    right = [states(**case) for case in cases]
    wrong = {key: [mistake(case) for case in cases] for key, mistake in MISTAKES.items()}
    for kind in KINDS:
        expected, mine = ([one.get(kind) for one in several] for several in (right, given))
        explains = {key for key, values in wrong.items() if agrees([v[kind] for v in values], mine, expected)}
        for case, due, got in zip(cases, expected, mine, strict=True):
            what = STATE.format(NAMES[kind], *case.values())
            yield expect_equal(what, due, got, mistakes=dict.fromkeys(explains, got))


def agrees(wrong: list, given: list, right: list) -> bool:
    """Whether the mistake gives what is wrong here, give or take the last digits of a float."""
    if given == right or not all(isinstance(got, int | float) for got in given):
        return False
    cases = zip(wrong, given, right, strict=True)
    return all(got == due or abs(value - got) <= 1e-9 * abs(value) for value, got, due in cases)


def states(
    num_params: int,
    precision: str,
    zero: int,
    dp: int,
    *,
    weigh: dict[str, tuple[int, int, int]] = BYTES,
    sharded_from: dict[str, int] = SHARDED_FROM,
    share_of: Callable[[int, int], int] = lambda n, dp: ceil(n / dp),
) -> Named:
    """Bytes on a rank by kind; the three options are what people get wrong."""
    counts = {k: share_of(num_params, dp) if zero >= sharded_from[k] else num_params for k in KINDS}
    return {kind: counts[kind] * size for kind, size in zip(KINDS, weigh[precision], strict=True)}


def weighed(**changed: tuple[int, int, int]) -> Callable[[dict], Named]:
    return lambda case: states(**case, weigh=BYTES | changed)


def sharded(**changed: int) -> Callable[[dict], Named]:
    return lambda case: states(**case, sharded_from=SHARDED_FROM | changed)


def in_units_of(size: float) -> Callable[[dict], dict[str, float]]:
    return lambda case: {kind: num_bytes / size for kind, num_bytes in states(**case).items()}


MISTAKES: dict[str, Callable[[dict], dict]] = {
    "master_forgotten": weighed(mixed=(2, 2, 8), mixed_fp32_grads=(2, 4, 8)),
    "one_moment": weighed(fp32=(4, 4, 4), mixed=(2, 2, 8), mixed_fp32_grads=(2, 4, 8)),
    "master_in_fp32_too": weighed(fp32=(4, 4, 12)),
    "moments_in_16_bit": weighed(mixed=(2, 2, 4), mixed_fp32_grads=(2, 4, 4)),
    "gradients_as_parameters": weighed(mixed_fp32_grads=(2, 2, 12)),
    "gradients_always_fp32": weighed(mixed=(2, 4, 12)),
    "optimizer_not_sharded": sharded(optimizer=9),
    "stage_1_shards_gradients": sharded(gradients=1),
    "stage_2_shards_parameters": sharded(parameters=2),
    "share_rounded_down": lambda case: states(**case, share_of=lambda n, dp: n // dp),
    "gigabytes": in_units_of(1e9),
    "gibibytes": in_units_of(2**30),
}
NAMES = {
    "parameters": Words(en="parameters", zh="参数"),
    "gradients": Words(en="gradients", zh="梯度"),
    "optimizer": Words(en="optimizer states", zh="优化器状态"),
}
STATE = Words(
    en="the number of bytes of {} ({:,} parameters, {!r}, ZeRO-{}, dp {})",
    zh="{}的字节数（{:,} 个参数，{!r}，ZeRO-{}，dp {}）",
)
STATES = Task(
    key="05.states",
    signature="model_states(num_params, precision, zero, dp)",
    make=make_states,
    act=act_states,
    judge=judge_states,
    hints=hints.of(*MISTAKES),
    world_sizes=(1,),
    unit="device",
)
