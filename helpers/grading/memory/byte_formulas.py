"""Judges the tasks that are formulas: 05.count, 05.llama (only the chapter asks it), 05.states and 05.activations.

Each task calls the learner's function in one process with several cases, and compares the numbers with those of the
right formula. A case is a list of the function's arguments; `make_…` draws the cases with the random numbers of `rng`.
`judge_…` gets a JudgedWorld, whose inputs[0] has the cases and outputs[0] the learner's answers, and yields one
Judgement per number.

Below the sentence about a wrong number stands the rule that decides there. Where a formula is a sum of terms, this rule
says which terms the learner has too many or too few. `words["…"]` is a sentence of messages.yaml, or what a sentence
calls a value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isclose, isfinite
from typing import Any

from helpers.grading.kit.answers import is_number, is_same_answer, run_questions
from helpers.grading.kit.comparisons import expect, with_rule
from helpers.grading.memory import LAB
from helpers.grading.plain_data import shortened, simplified
from helpers.grading.task import JudgedWorld, Judgement, NumberGenerator, Task
from helpers.learner.words import Words
from helpers.predict.least_squares import least_squares

words = LAB.messages
AND = Words(en=" and ", zh="，以及 ")
TOLERANCE = 1e-12  # relative: a float that is the right number but for its rounding is right


# -- a formula, called with several sizes ----------------------------------------------------------------------------
@dataclass(frozen=True)
class SumFormula:
    """A number that is a sum of whole multiples of units, such as 13 times `hidden` in each layer.

    name: of texts in messages.yaml: what a sentence calls the number, how much each unit gives (`terms_of_…`), and the
    units themselves (`unit_…`). right: how many of each unit the number is. sizes: a function of a case's values that
    gives the size of each unit, also of those that only a wrong formula contains.
    """

    name: str
    right: Mapping[str, int]
    sizes: Callable[..., dict[str, int]]

    def number(self, *case: Any) -> int:
        """The right number of a case."""
        return sum(self.terms(*case).values())

    def terms(self, *case: Any) -> dict[str, int]:
        """What each unit adds to the right number."""
        sizes = self.sizes(*case)
        return {unit: n * sizes[unit] for unit, n in self.right.items()}

    def judge(self, world: JudgedWorld) -> Iterator[Judgement]:
        """Expects the right number in each case."""
        cases, got = world.inputs[0]["cases"], simplified(world.outputs[0])
        right = [self.number(*case) for case in cases]
        added = terms_of_difference([self.sizes(*case) for case in cases], right, got)
        terms = AND.join([words[f"unit_{unit}"].format(n) for unit, n in added.items()])
        for case, expected, given in zip(cases, right, got, strict=True):
            of_case = words[f"terms_of_{self.name}"].format(**self.terms(*case))
            rule = words["difference"].format(terms) if added else of_case
            yield from judge_number(words[self.name].format(*case), expected, given, rule)


def formula_task(key: str, signature: str, make_inputs: Any, judge: Any) -> Task:
    """The Task of a formula, in one process. key: "05.count"."""
    parts = {"make_inputs": make_inputs, "run_submission": run_questions, "judge": judge}
    return Task(key=key, signature=signature, runs_on="process", needs_torch=False, **parts)


def terms_of_difference(
    units: Sequence[Mapping[str, int]], right: Sequence[int], got: Sequence[Any]
) -> dict[str, Fraction]:
    """How many of which units explain, in all cases, what the learner's numbers are above the right ones.

    The fewest units are taken that do, at most three. It is {} where none do, for example if a number is no number.
    """
    if got == right or not all(isinstance(given, int | float) and isfinite(given) for given in got):
        return {}
    differences = [Fraction(given) - expected for given, expected in zip(got, right, strict=True)]
    for names in (names for count in (1, 2, 3) for names in itertools.combinations(units[0], count)):
        rows = [[Fraction(of_case[name]) for name in names] for of_case in units]
        try:
            terms = [n.limit_denominator(4) for n in least_squares(rows, differences)]
        except ZeroDivisionError:  # one unit is a multiple of others, and fewer units have been tried before
            continue
        sums = [sum(n * size for n, size in zip(terms, row, strict=True)) for row in rows]
        if all(terms) and all(map(isclose, sums, differences)):
            return dict(zip(names, terms, strict=True))
    return {}


def judge_number(name: Words, expected: int, given: Any, rule: Words) -> Iterator[Judgement]:
    """Expects this number, with the rule below the sentence about another one."""
    shown = f"{given:,}" if is_number(given) else shortened(given)
    message = words["number"].format(name, shown, expected)
    yield from with_rule(rule, [expect(is_same_answer(expected, given, TOLERANCE), message)])


# -- 05.count --------------------------------------------------------------------------------------------------------
# n layers, h hidden size, v entries of the vocabulary, s positions. A layer has 4 matrices in attention and 8 in its
# feed-forward part, 9 h biases, and 4 h in two LayerNorms.
COUNT_FORMULA = SumFormula(
    "num_parameters",
    {"matrix": 12, "row": 13, "once": 2, "vocab": 1, "seq": 1},
    lambda n, h, v, s: dict(
        matrix=n * h * h, row=n * h, once=h, vocab=v * h, seq=s * h, square=h * h, entries=v, seqs=n * s * h
    ),
)


def make_count(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws the sizes of three GPTs, none of them a round number; the second has a single layer."""
    cases = [
        [num_layers, rng.integer(100, 1500), rng.integer(3_000, 20_000), rng.integer(100, 4000)]
        for num_layers in (rng.integer(3, 40), 1, rng.integer(3, 40))
    ]
    return [{"cases": cases}]


COUNT_SIGNATURE = "num_params(num_layers, hidden, vocab, seq)"
COUNT = formula_task("05.count", COUNT_SIGNATURE, make_count, COUNT_FORMULA.judge)

# -- 05.llama, of the chapter -----------------------------------------------------------------------------------------
# n layers, h hidden size, a heads, k heads of keys and values, f feed-forward width, v entries of the vocabulary.
LLAMA_FORMULA = SumFormula(
    "num_parameters_of_llama",
    {"matrix": 2, "grouped": 2, "ffn": 3, "row": 2, "once": 1, "vocab": 2},
    lambda n, h, a, k, f, v: dict(
        matrix=n * h * h, grouped=n * h * k * (h // a), ffn=n * h * f, row=n * h, once=h, vocab=v * h
    ),
)


def make_llama(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws the sizes of three Llamas, none of them a round number; the second has a single layer.

    Two or more heads share their keys and values.
    """
    cases = []
    for num_layers in (rng.integer(3, 40), 1, rng.integer(3, 40)):
        kv_heads = rng.integer(2, 8)
        num_heads = kv_heads * rng.integer(2, 6)
        hidden, ffn = num_heads * rng.integer(16, 32), rng.integer(500, 4000)
        cases.append([num_layers, hidden, num_heads, kv_heads, ffn, rng.integer(3_000, 20_000)])
    return [{"cases": cases}]


LLAMA_SIGNATURE = "num_params(num_layers, hidden, num_heads, kv_heads, ffn, vocab)"
LLAMA = formula_task("05.llama", LLAMA_SIGNATURE, make_llama, LLAMA_FORMULA.judge)


# -- 05.states -------------------------------------------------------------------------------------------------------
KINDS = ("parameters", "gradients", "optimizer")
# Bytes of each kind with Adam, which holds two moments and, in mixed precision, an fp32 copy of the parameters.
BYTES_PER_PARAMETER = {"fp32": (4, 4, 8), "mixed": (2, 2, 12), "mixed_fp32_grads": (2, 4, 12)}
SHARDED_FROM = {"parameters": 3, "gradients": 2, "optimizer": 1}  # the ZeRO stage; Rajbhandari et al. 2020, figure 1


def make_states(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws numbers of parameters and ranks, and combines each pair with every precision and every ZeRO stage."""
    combined = itertools.product(draw_shard_sizes(rng), BYTES_PER_PARAMETER, range(4))
    return [{"cases": [[num_params, precision, zero, dp] for (num_params, dp), precision, zero in combined]}]


def draw_shard_sizes(rng: NumberGenerator) -> list[tuple[int, int]]:
    """Numbers of parameters and of ranks.

    The division leaves as many parameters as possible, then one, then none; then there is one rank, and last there are
    two ranks or more for each parameter.
    """
    num_ranks = [rng.integer(3, 64) for _ in range(4)]
    shards = [rng.integer(10**6, 10**8) for _ in range(4)]  # parameters per rank, without the rest of the division
    rests = (num_ranks[0] - 1, 1, 0)
    divided = [(num_ranks[i] * shards[i] + rest, num_ranks[i]) for i, rest in enumerate(rests)]
    return [*divided, (shards[3], 1), (rng.integer(1, num_ranks[3] // 2), num_ranks[3])]


def judge_states(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects a dict with the bytes of each kind."""
    cases, got = world.inputs[0]["cases"], simplified(world.outputs[0])
    for output in got:
        is_dict = isinstance(output, dict) and output.keys() == set(KINDS)
        yield expect(is_dict, words["no_dict_of_states"].format(shortened(output)))
        if not is_dict:
            return
    for kind, (case, output) in itertools.product(KINDS, zip(cases, got, strict=True)):
        expected, name = model_states(*case)[kind], words["bytes_of_state"].format(words[kind], *case)
        yield from judge_number(name, expected, output[kind], rule_of_state(kind, expected, *case))


def rule_of_state(kind: str, num_bytes: int, num_params: int, precision: str, zero: int, dp: int) -> Words:
    """Why a rank holds so many bytes of this kind."""
    size = BYTES_PER_PARAMETER[precision][KINDS.index(kind)]
    text = words["rule_of_shard" if zero >= SHARDED_FROM[kind] else "rule_of_full"]
    return text.format(words[kind], num_bytes // size, size, SHARDED_FROM[kind])


def model_states(num_params: int, precision: str, zero: int, dp: int) -> dict[str, int]:
    """The bytes of each kind on one rank.

    precision: a key of BYTES_PER_PARAMETER. zero: the ZeRO stage, 0 to 3. dp: the number of data-parallel ranks.
    """
    counts = [-(-num_params // dp) if zero >= SHARDED_FROM[kind] else num_params for kind in KINDS]
    return {kind: n * size for kind, n, size in zip(KINDS, counts, BYTES_PER_PARAMETER[precision], strict=True)}


STATES = formula_task("05.states", "model_states(num_params, precision, zero, dp)", make_states, judge_states)


# -- 05.activations --------------------------------------------------------------------------------------------------
# Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4: equation 1 (one
# GPU), 2 (tensor parallel) and 4 (with sequence parallelism), with 2-byte numbers and 1-byte dropout masks. The letters
# are the paper's: s positions, b sequences, h hidden size, a attention heads, t ranks of tensor parallelism.
#
# "split" is what tensor parallelism splits, and "rest" is what only sequence parallelism splits. "maps" are the
# attention maps, the matrices of s x s weights after softmax, where they are stored; "flash_maps" are those that flash
# attention does not store. Units with "full" are not divided by t.
def units_of_activations(
    s: int, b: int, h: int, a: int, t: int, sequence_parallel: bool, flash: bool
) -> dict[str, int]:
    """The number of elements in each unit of ACTIVATIONS_FORMULA; t divides s and a."""
    full, maps = s * b * h, a * s * s * b
    units = {"rest": full // (t if sequence_parallel else 1), "split": full // t, "full": full}
    stored = {"maps": maps // t, "full_maps": maps, "one_map": maps // t // a, "flash_maps": maps // t}
    return units | {name: size if flash == (name == "flash_maps") else 0 for name, size in stored.items()}


# "rest" are the inputs of both norms, of attention and of the feed-forward part with 2 bytes, and the masks of the
# dropout after both parts with 1. "split" are q, k, v and the input of the projection, and the inputs of GELU and of
# the second feed-forward matrix, which are 4 h wide. "maps" are softmax's output, the same after dropout, and a mask.
ACTIVATIONS_FORMULA = SumFormula("bytes_of_activations", {"rest": 10, "split": 24, "maps": 5}, units_of_activations)


def make_activations(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws a layer on one GPU and on several, with and without sequence parallelism, and each with and without flash
    attention."""
    cases = []
    for is_split, sequence_parallel, flash in itertools.product((False, True), repeat=3):
        t = rng.integer(2, 8) if is_split else 1
        heads = t * rng.integer(2, 8)  # t divides heads and s, the two that it splits
        sizes = [t * rng.integer(30, 300), rng.integer(1, 7), heads * rng.integer(16, 128), heads]
        cases.append([*sizes, t, sequence_parallel, flash])
    return [{"cases": cases}]


SIGNATURE = "layer_activations(s, b, h, a, t, sequence_parallel, flash)"
ACTIVATIONS = formula_task("05.activations", SIGNATURE, make_activations, ACTIVATIONS_FORMULA.judge)
