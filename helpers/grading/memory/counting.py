"""05.count and 05.states: how many parameters a GPT has, and the bytes of a rank before the first token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, isclose
from typing import Any

from helpers.grading.drawing import CaseGenerator
from helpers.grading.kit.judging import expect_equal
from helpers.grading.kit.meter import as_integer
from helpers.grading.memory import LAB
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words

Named = dict[str, int]


# -- a formula, asked for several sizes ------------------------------------------------------------------------------
def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    return [as_integer(submitted(*case.values())) for case in inputs["cases"]]


def judge_numbers(
    names: Sequence[Words], right: Sequence[int], given: Sequence[Any], mistakes: Mapping[str, Sequence[Any]]
) -> Iterator[Judgement]:
    """One Finding a number. A mistake is known if it explains each number that is wrong."""
    given = [due if is_near(due, got) else got for due, got in zip(right, given, strict=True)]
    known = [key for key, wrong in mistakes.items() if explains(wrong, given, right)]
    for what, due, got in zip(names, right, given, strict=True):
        yield expect_equal(what, due, got, mistakes=dict.fromkeys(known, got))


def explains(wrong: Sequence[Any], given: Sequence[Any], right: Sequence[int]) -> bool:
    return given != right and all(
        got == due or got == value or is_near(value, got) for value, got, due in zip(wrong, given, right, strict=True)
    )


def is_near(value: Any, got: Any) -> bool:
    """Whether `got` is this number but for the last digits of a float: whole numbers are exact."""
    floats = float in (type(value), type(got)) and {type(value), type(got)} <= {int, float}
    return floats and isclose(value, got, rel_tol=1e-12)


# -- 05.count --------------------------------------------------------------------------------------------------------
def make_count(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """GPTs with sizes that are no round numbers; one has a single layer."""
    return [{"cases": [telling_sizes(rng, layers) for layers in (rng.integer(3, 40), 1, rng.integer(3, 40))]}]


def telling_sizes(rng: CaseGenerator, num_layers: int) -> Named:
    """Sizes with which no two mistakes give one number."""
    while True:
        sizes = {"num_layers": num_layers, "hidden": rng.integer(100, 4000)}
        sizes |= {"vocab": rng.integer(5_000, 60_000), "seq": rng.integer(100, 4000)}
        counts = {mistake(**sizes) for mistake in MISCOUNTS.values()}
        if len(counts) == len(MISCOUNTS):
            return sizes


def judge_count(world: JudgedWorld) -> Iterator[Judgement]:
    cases = world.inputs[0]["cases"]
    names = [PARAMETERS.format(*case.values()) for case in cases]
    wrong = {key: [mistake(**case) for case in cases] for key, mistake in MISCOUNTS.items()}
    yield from judge_numbers(names, [num_params(**case) for case in cases], world.outputs[0], wrong)


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
    make_inputs=make_count,
    run_submission=run_submission,
    judge=judge_count,
    hints=LAB.hints(*MISCOUNTS),
    world_sizes=(1,),
    runs_on="process",
)


# -- 05.states -------------------------------------------------------------------------------------------------------
KINDS = ("parameters", "gradients", "optimizer")
BYTES = {"fp32": (4, 4, 8), "mixed": (2, 2, 12), "mixed_fp32_grads": (2, 4, 12)}  # a parameter, with Adam
SHARDED_FROM = {"parameters": 3, "gradients": 2, "optimizer": 1}  # the ZeRO stage; Rajbhandari et al. 2020, figure 1


def make_states(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every precision with every stage, and with every rest of the division."""
    kinds = [(precision, zero) for precision in BYTES for zero in range(4)]
    cases = [(shared, precision, zero) for shared in shares(rng) for precision, zero in kinds]
    names = ("num_params", "precision", "zero", "dp")
    return [{"cases": [dict(zip(names, (n, precision, zero, dp), strict=True)) for (n, dp), precision, zero in cases]}]


def shares(rng: CaseGenerator) -> list[tuple[int, int]]:
    """Parameters and ranks: all rests but one, one, none; one rank; fewer parameters than ranks."""
    dp = [rng.integer(3, 64) for _ in range(4)]
    each = [rng.integer(10**6, 10**8) for _ in range(4)]
    rests = (dp[0] - 1, 1, 0)
    pairs = [(ranks * share + rest, ranks) for ranks, share, rest in zip(dp, each, rests, strict=False)]
    return [*pairs, (each[3], 1), (rng.integer(1, dp[3] - 1), dp[3])]


def judge_states(world: JudgedWorld) -> Iterator[Judgement]:
    """Kind by kind, since a mistake is often one of a single kind."""
    cases, given = world.inputs[0]["cases"], world.outputs[0]
    given = [one if isinstance(one, dict) else {} for one in given]
    right = [states(**case) for case in cases]
    wrong = {key: [mistake(case) for case in cases] for key, mistake in MISTAKES.items()}
    for kind in KINDS:
        names = [STATE.format(NAMES[kind], *case.values()) for case in cases]
        due, mine = ([one.get(kind) for one in several] for several in (right, given))
        yield from judge_numbers(
            names, due, mine, {key: [one[kind] for one in several] for key, several in wrong.items()}
        )
    for one in given:
        yield expect_equal(KEYS, sorted(KINDS), sorted(one))


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
KEYS = Words(en="the keys of the dict", zh="字典的键")
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
    make_inputs=make_states,
    run_submission=run_submission,
    judge=judge_states,
    hints=LAB.hints(*MISTAKES),
    world_sizes=(1,),
    runs_on="process",
)
