"""Judges the tasks that are formulas: 05.count, 05.llama (only the chapter asks it), 05.states and 05.activations.

Each task calls the learner's function in one process with several cases, and compares the numbers with those of the
right formula. A case is a dict of the function's arguments, in its order; `make_…` draws the cases with the random
numbers of `rng`. `judge_…` gets a JudgedWorld, whose inputs[0] has the cases and outputs[0] the learner's answers, and
yields one Judgement per number.

A mistake is a wrong formula that learners often write. Its key, such as "one_moment", is that of its hint in
hints.yaml. Most mistakes are the right formula with one option changed. A mistake is named if it gives every wrong
number of the learner's. Sizes are drawn until no two mistakes give the same number, so that the hint is the right one.
`words["…"]` is a sentence of messages.yaml, or what a sentence calls a value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isclose
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.comparisons import expect_equal
from helpers.grading.kit.model_tools import simplified
from helpers.grading.memory import LAB
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words

words = LAB.messages
Formula = Callable[[dict[str, Any]], Any]  # of a case


# -- a formula, called with several sizes ----------------------------------------------------------------------------
def run_formula(submitted, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """What the learner's function, `submitted`, returns for each case; 12.0 counts as 12."""
    return [simplified(submitted(*case.values())) for case in inputs["cases"]]


def judge_numbers(
    names: Sequence[Words], right: Sequence[int], got: Sequence[Any], mistakes: Mapping[str, Sequence[Any]]
) -> Iterator[Judgement]:
    """One Judgement per number. A mistake is named if its numbers explain all of those that are wrong.

    All arguments have one item per number. mistakes: maps the key of a hint to the numbers that the mistake gives.
    """
    # A float that is the right number but for rounding counts as the right number.
    got = [expected if is_near(expected, given) else given for expected, given in zip(right, got, strict=True)]
    known = [key for key, wrong in mistakes.items() if is_explained_by(wrong, got, right)]
    for name, expected, given in zip(names, right, got, strict=True):
        # expect_equal names each key whose value is the learner's number, so every known key gets that number here.
        yield expect_equal(name, expected, given, mistakes=dict.fromkeys(known, given))


def is_explained_by(wrong: Sequence[Any], got: Sequence[Any], right: Sequence[int]) -> bool:
    """Whether some number is not right, and each that is not right is the one of this mistake."""
    if got == right:
        return False
    numbers = zip(wrong, got, right, strict=True)
    return all(given in (expected, value) or is_near(value, given) for value, given, expected in numbers)


def is_near(value: Any, got: Any) -> bool:
    """Whether one is a float and both are the same number but for its rounding; two whole numbers are never near."""
    types = {type(value), type(got)}
    return types in ({float}, {int, float}) and isclose(value, got, rel_tol=1e-12)


def judge_formula(world: JudgedWorld, text: Words, right: Formula, wrong: Formula) -> Iterator[Judgement]:
    """Expects one number in each case, the one that `right` gives.

    text: what a sentence calls the number; it is filled with the values of a case. wrong: gives the number of every
    known mistake, by the key of its hint.
    """
    cases = world.inputs[0]["cases"]
    names = [text.format(*case.values(), **case) for case in cases]
    numbers = [wrong(case) for case in cases]
    mistakes = {key: [of_case[key] for of_case in numbers] for key in numbers[0]}
    yield from judge_numbers(names, [right(case) for case in cases], world.outputs[0], mistakes)


def formula_task(key: str, signature: str, make_inputs: Any, judge: Any, wrong: Mapping[str, Any]) -> Task:
    """A Task in one process, whose hints are those of the wrong formulas. key: "05.count". wrong: by keys of hints."""
    parts = {"make_inputs": make_inputs, "run_submission": run_formula, "judge": judge, "hints": LAB.hints(*wrong)}
    return Task(key=key, signature=signature, runs_on="process", **parts)


# -- 05.count --------------------------------------------------------------------------------------------------------
def make_count(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws the sizes of three GPTs, none of them a round number; the second has a single layer."""
    return [{"cases": [draw_gpt_sizes(rng, layers) for layers in (rng.integer(3, 40), 1, rng.integer(3, 40))]}]


def draw_gpt_sizes(rng: CaseGenerator, num_layers: int) -> dict[str, int]:
    """Sizes with which no two mistakes give the same number."""
    while True:
        sizes = {"num_layers": num_layers, "hidden": rng.integer(100, 4000)}
        sizes |= {"vocab": rng.integer(5_000, 60_000), "seq": rng.integer(100, 4000)}
        if len(set(wrong_counts(sizes).values())) == len(LEFT_OUT):
            return sizes


def judge_count(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the number of parameters of each GPT."""
    yield from judge_formula(world, words["num_parameters"], lambda case: num_params(**case), wrong_counts)


def num_params(num_layers: int, hidden: int, vocab: int, seq: int) -> int:
    """Parameters of a GPT-2: biases everywhere, LayerNorms, learned positions, and a head tied to the token table."""
    # A layer has 4 h^2 weights in attention and 8 h^2 in its feed-forward part, 9 h biases, and 4 h in two LayerNorms.
    return num_layers * (12 * hidden**2 + 13 * hidden) + (vocab + seq) * hidden + 2 * hidden


# Key of a hint -> how many parameters the mistake leaves out; a negative number for something that is counted twice.
# n layers, h hidden size, v entries of the vocabulary, s positions.
LEFT_OUT: dict[str, Callable[[int, int, int, int], int]] = {
    "biases_forgotten": lambda n, h, v, s: n * 9 * h,
    "norms_forgotten": lambda n, h, v, s: n * 4 * h + 2 * h,
    "last_norm_forgotten": lambda n, h, v, s: 2 * h,
    "projection_forgotten": lambda n, h, v, s: n * (h * h + h),  # attention's output projection
    "feed_forward_narrow": lambda n, h, v, s: n * (6 * h * h + 3 * h),  # as wide as h, not 4 h
    "positions_forgotten": lambda n, h, v, s: s * h,
    "head_counted_twice": lambda n, h, v, s: -v * h,
    "only_matrices": lambda n, h, v, s: n * 13 * h + 2 * h,
}


def wrong_counts(case: dict[str, int]) -> dict[str, int]:
    """The number of parameters that every known mistake gives for these sizes."""
    return {key: num_params(**case) - left_out(*case.values()) for key, left_out in LEFT_OUT.items()}


COUNT = formula_task("05.count", "num_params(num_layers, hidden, vocab, seq)", make_count, judge_count, LEFT_OUT)


# -- 05.llama, of the chapter -----------------------------------------------------------------------------------------
def make_llama(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws the sizes of three Llamas, none of them a round number; the second has a single layer."""
    return [{"cases": [draw_llama_sizes(rng, layers) for layers in (rng.integer(3, 40), 1, rng.integer(3, 40))]}]


def draw_llama_sizes(rng: CaseGenerator, num_layers: int) -> dict[str, int]:
    """Sizes with which no two mistakes give the same number. Two or more heads share their keys and values."""
    while True:
        kv_heads = rng.integer(2, 8)
        num_heads = kv_heads * rng.integer(2, 6)
        sizes = {"num_layers": num_layers, "hidden": num_heads * rng.integer(16, 96), "num_heads": num_heads}
        sizes |= {"kv_heads": kv_heads, "ffn": rng.integer(500, 9000), "vocab": rng.integer(5_000, 60_000)}
        if len(set(wrong_llama_counts(sizes).values())) == len(LEFT_OUT_OF_LLAMA):
            return sizes


def judge_llama(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the number of parameters of each Llama."""
    right = words["num_parameters_of_llama"]
    yield from judge_formula(world, right, lambda case: num_params_of_llama(**case), wrong_llama_counts)


def num_params_of_llama(num_layers: int, hidden: int, num_heads: int, kv_heads: int, ffn: int, vocab: int) -> int:
    """Parameters of a Llama: grouped queries, SwiGLU, RMSNorms, a head of its own, no biases and no positions."""
    kv_width = kv_heads * (hidden // num_heads)
    layer = 2 * hidden**2 + 2 * hidden * kv_width + 3 * hidden * ffn + 2 * hidden
    return num_layers * layer + hidden + 2 * vocab * hidden


# Like LEFT_OUT. n layers, h hidden size, a heads, k heads of keys and values, f feed-forward width, v vocabulary.
LEFT_OUT_OF_LLAMA: dict[str, Callable[[int, int, int, int, int, int], int]] = {
    "all_heads_have_keys": lambda n, h, a, k, f, v: -n * 2 * h * (h - k * (h // a)),
    "gate_forgotten": lambda n, h, a, k, f, v: n * h * f,
    "head_taken_as_tied": lambda n, h, a, k, f, v: v * h,
    "rms_norms_forgotten": lambda n, h, a, k, f, v: (2 * n + 1) * h,
    "rms_norm_with_bias": lambda n, h, a, k, f, v: -(2 * n + 1) * h,
    "final_rms_norm_forgotten": lambda n, h, a, k, f, v: h,
}


def wrong_llama_counts(case: dict[str, int]) -> dict[str, int]:
    """The number of parameters that every known mistake gives for these sizes."""
    return {key: num_params_of_llama(**case) - left_out(*case.values()) for key, left_out in LEFT_OUT_OF_LLAMA.items()}


LLAMA_SIGNATURE = "num_params(num_layers, hidden, num_heads, kv_heads, ffn, vocab)"
LLAMA = formula_task("05.llama", LLAMA_SIGNATURE, make_llama, judge_llama, LEFT_OUT_OF_LLAMA)


# -- 05.states -------------------------------------------------------------------------------------------------------
KINDS = ("parameters", "gradients", "optimizer")
# Bytes of each kind with Adam, which holds two moments and, in mixed precision, an fp32 copy of the parameters.
BYTES_PER_PARAMETER = {"fp32": (4, 4, 8), "mixed": (2, 2, 12), "mixed_fp32_grads": (2, 4, 12)}
SHARDED_FROM = {"parameters": 3, "gradients": 2, "optimizer": 1}  # the ZeRO stage; Rajbhandari et al. 2020, figure 1
NEVER = 4  # a ZeRO stage that does not exist; in SHARDED_FROM it means that a kind is never sharded


def make_states(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws numbers of parameters and ranks, and combines each pair with every precision and every ZeRO stage."""
    cases = [
        {"num_params": num_params, "precision": precision, "zero": zero, "dp": dp}
        for num_params, dp in draw_shard_sizes(rng)
        for precision in BYTES_PER_PARAMETER
        for zero in range(4)
    ]
    return [{"cases": cases}]


def draw_shard_sizes(rng: CaseGenerator) -> list[tuple[int, int]]:
    """Numbers of parameters and of ranks.

    The division leaves as many parameters as possible, then one, then none; then there is one rank, and last there are
    fewer parameters than ranks.
    """
    num_ranks = [rng.integer(3, 64) for _ in range(4)]
    shards = [rng.integer(10**6, 10**8) for _ in range(4)]  # parameters per rank, without the rest of the division
    rests = (num_ranks[0] - 1, 1, 0)
    divided = [(num_ranks[i] * shards[i] + rest, num_ranks[i]) for i, rest in enumerate(rests)]
    return [*divided, (shards[3], 1), (rng.integer(1, num_ranks[3] - 1), num_ranks[3])]


def judge_states(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects a dict with the bytes of each kind. Kinds are judged one by one, since most mistakes concern one kind."""
    cases = world.inputs[0]["cases"]
    got = [output if isinstance(output, dict) else {} for output in world.outputs[0]]
    right = [model_states(**case) for case in cases]
    wrong = {key: [mistake(case) for case in cases] for key, mistake in WRONG_STATES.items()}
    for kind in KINDS:
        names = [words["bytes_of_state"].format(words[kind], *case.values()) for case in cases]
        expected, given = [states[kind] for states in right], [states.get(kind) for states in got]
        mistakes = {key: [states[kind] for states in of_cases] for key, of_cases in wrong.items()}
        yield from judge_numbers(names, expected, given, mistakes)
    for output in got:
        yield expect_equal(words["keys_of_dict"], sorted(KINDS), sorted(output))


def model_states(
    num_params: int,
    precision: str,
    zero: int,
    dp: int,
    *,
    bytes_per_parameter: Mapping[str, tuple[int, int, int]] = BYTES_PER_PARAMETER,
    sharded_from: Mapping[str, int] = SHARDED_FROM,
    shard_size: Callable[[int, int], int] = lambda num_params, dp: ceil(num_params / dp),
) -> dict[str, int]:
    """The bytes of each kind on one rank. The last three arguments are what people get wrong.

    precision: a key of bytes_per_parameter. zero: the ZeRO stage, 0 to 3. dp: the number of data-parallel ranks.
    """
    counts = [shard_size(num_params, dp) if zero >= sharded_from[kind] else num_params for kind in KINDS]
    sizes = bytes_per_parameter[precision]
    return {kind: count * size for kind, count, size in zip(KINDS, counts, sizes, strict=True)}


def with_bytes(**changed: tuple[int, int, int]) -> Callable[[dict], dict[str, int]]:
    """The mistake of somebody with other bytes per parameter in these precisions."""
    return lambda case: model_states(**case, bytes_per_parameter=BYTES_PER_PARAMETER | changed)


def with_sharding(**changed: int) -> Callable[[dict], dict[str, int]]:
    """The mistake of somebody who shards these kinds from another ZeRO stage on."""
    return lambda case: model_states(**case, sharded_from=SHARDED_FROM | changed)


def in_units_of(size: float) -> Callable[[dict], dict[str, float]]:
    """The mistake of somebody who does not return bytes."""
    return lambda case: {kind: num_bytes / size for kind, num_bytes in model_states(**case).items()}


# Key of a hint -> a function that gives for a case the wrong bytes of each kind.
WRONG_STATES: dict[str, Callable[[dict], dict]] = {
    # The first two agree where weights are mixed; the cases in fp32 tell them apart.
    "master_forgotten": with_bytes(mixed=(2, 2, 8), mixed_fp32_grads=(2, 4, 8)),
    "one_moment": with_bytes(fp32=(4, 4, 4), mixed=(2, 2, 8), mixed_fp32_grads=(2, 4, 8)),
    "master_in_fp32_too": with_bytes(fp32=(4, 4, 12)),
    "moments_in_16_bit": with_bytes(mixed=(2, 2, 4), mixed_fp32_grads=(2, 4, 4)),
    "gradients_as_parameters": with_bytes(mixed_fp32_grads=(2, 2, 12)),
    "gradients_always_fp32": with_bytes(mixed=(2, 4, 12)),
    "optimizer_not_sharded": with_sharding(optimizer=NEVER),
    "stage_1_shards_gradients": with_sharding(gradients=1),
    "stage_2_shards_parameters": with_sharding(parameters=2),
    "share_rounded_down": lambda case: model_states(**case, shard_size=lambda num_params, dp: num_params // dp),
    "gigabytes": in_units_of(1e9),
    "gibibytes": in_units_of(2**30),
}
STATES = formula_task(
    "05.states", "model_states(num_params, precision, zero, dp)", make_states, judge_states, WRONG_STATES
)


# -- 05.activations --------------------------------------------------------------------------------------------------
# Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4: equation 1 (one
# GPU), 2 (tensor parallel) and 4 (with sequence parallelism), with 2-byte numbers and 1-byte dropout masks. The letters
# are the paper's: s positions, b sequences, h hidden size, a attention heads, t ranks of tensor parallelism.
def make_activations(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws a layer on one GPU and on several, with and without sequence parallelism, and each with and without flash
    attention."""
    kinds = itertools.product((False, True), repeat=3)  # whether it is split, sequence parallelism, flash attention
    return [{"cases": [draw_layer(rng, *kind) for kind in kinds]}]


def draw_layer(rng: CaseGenerator, is_split: bool, sequence_parallel: bool, flash: bool) -> dict[str, Any]:
    """Sizes with which no two mistakes give the same number.

    With t = 3, for example, a mistake in the bytes of a number may give the same as a mistake in what is split.
    """
    while True:
        t = rng.integer(2, 8) if is_split else 1
        heads = t * rng.integer(2, 8)  # t divides heads and s, the two that it splits
        sizes = {"s": t * rng.integer(30, 300), "b": rng.integer(1, 7), "h": heads * rng.integer(16, 128), "a": heads}
        case = sizes | {"t": t, "sequence_parallel": sequence_parallel, "flash": flash}
        # A mistake that this case does not show, such as one about flash attention without it, is left out.
        wrong = [value for value in wrong_activation_bytes(case).values() if value != activation_bytes(case)]
        if len(set(wrong)) == len(wrong):
            return case


def judge_activations(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the bytes that each layer stores for backward."""
    yield from judge_formula(world, words["bytes_of_activations"], activation_bytes, wrong_activation_bytes)


def wrong_activation_bytes(case: dict[str, Any]) -> dict[str, int | float]:
    """The number that every known mistake gives."""
    return {key: activation_bytes(case, **options) for key, options in WRONG_ACTIVATIONS.items()}


@dataclass(frozen=True, kw_only=True)
class ActivationRules:
    """How activations are counted: as the paper does, or with a mistake.

    An attention map is the matrix of s x s weights after softmax. A mask says which elements dropout keeps.
    """

    number_bytes: int = 2  # of one element of an activation
    mask_bytes: int = 1  # of one element of a mask
    feed_forward_width: int = 4  # times hidden
    has_heads: bool = True  # one attention map per head, not one for all
    has_maps: bool = True  # attention maps are counted at all
    has_flash: bool = True  # flash attention stores no maps
    is_map_split: bool = True  # by tensor parallelism
    is_block_split: bool = True  # by tensor parallelism
    rest_split: str = "sequence_parallel"  # what splits norms, block inputs and masks; or "always", "never"


def activation_bytes(case: dict[str, Any], **options: Any) -> int | float:
    """The bytes of the layer's activations on one rank; the options are those of ActivationRules.

    It is a float only if the bytes are no whole number, which a mistake may give.
    """
    rules = ActivationRules(**options)
    s, b, h, t = (case[name] for name in "sbht")
    # By how many ranks each part is divided.
    block_split = t if rules.is_block_split else 1
    map_split = block_split if rules.is_map_split else 1
    rest_split = {"sequence_parallel": t if case["sequence_parallel"] else 1, "always": t, "never": 1}[rules.rest_split]
    # Not split by tensor parallelism: the inputs of both norms, of attention and of the feed-forward part (4 s b h
    # numbers), and the masks of the dropout after both parts (2 s b h).
    rest = Fraction(s * b * h * (4 * rules.number_bytes + 2 * rules.mask_bytes), rest_split)
    # Inside the two parts: q, k, v and the input of the projection (4 s b h), and the inputs of GELU and of the second
    # feed-forward matrix (2 s b h times the width).
    blocks = Fraction(s * b * h * (4 + 2 * rules.feed_forward_width) * rules.number_bytes, block_split)
    # For each element of an attention map: softmax's output, the same after dropout, and the mask of that dropout.
    num_maps = b * (case["a"] if rules.has_heads else 1)
    maps = Fraction((2 * rules.number_bytes + rules.mask_bytes) * num_maps * s * s, map_split)
    is_map_stored = rules.has_maps and not (rules.has_flash and case["flash"])
    total = rest + blocks + (maps if is_map_stored else 0)
    return float(total) if total.denominator > 1 else int(total)


# Key of a hint -> the options of ActivationRules that make the mistake.
WRONG_ACTIVATIONS: dict[str, dict[str, Any]] = {
    "map_forgotten": {"has_maps": False},
    "heads_forgotten": {"has_heads": False},
    "masks_of_two_bytes": {"mask_bytes": 2},
    "masks_left_out": {"mask_bytes": 0},
    "four_byte_numbers": {"number_bytes": 4},
    "feed_forward_not_wide": {"feed_forward_width": 1},
    "flash_keeps_maps": {"has_flash": False},
    "tp_splits_all": {"rest_split": "always"},
    "tp_ignored": {"is_block_split": False, "rest_split": "never"},
    "maps_not_split": {"is_map_split": False},
    "sequence_parallel_ignored": {"rest_split": "never"},
}
SIGNATURE = "layer_activations(s, b, h, a, t, sequence_parallel, flash)"
ACTIVATIONS = formula_task("05.activations", SIGNATURE, make_activations, judge_activations, WRONG_ACTIVATIONS)
