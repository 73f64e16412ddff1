"""Judges the tasks that are formulas: 05.count, 05.llama (only the chapter asks it), 05.states and 05.activations.

Each task calls the learner's function in one process with several cases, and compares the numbers with those of the
right formula. A case is a dict of the function's arguments, in its order; `make_…` draws the cases with the random
numbers of `rng`. `judge_…` gets a JudgedWorld, whose inputs[0] has the cases and outputs[0] the learner's answers, and
yields one Judgement per number.

A mistake is a wrong formula that learners often write. Its key, such as "one_moment", is that of its hint in
hints.yaml. A mistake is named if it gives every wrong number of the learner's. Sizes are drawn until no two mistakes
give the same number, so that the hint is the right one. Where a formula is a sum of terms, the sentence about a wrong
number says which terms the learner has too many or too few. `words["…"]` is a sentence of messages.yaml, or what a
sentence calls a value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil, isclose, isfinite
from pathlib import Path
from typing import Any

import torch
import yaml

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.comparisons import expect, shortened
from helpers.grading.kit.model_tools import simplified
from helpers.grading.memory import LAB
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words

words = LAB.messages
AND = Words(en=" and ", zh="，以及 ")


# -- a formula, called with several sizes ----------------------------------------------------------------------------
@cache
def multiples(name: str) -> dict[str, dict]:
    """The right multiples of a formula's units, and those that each known mistake adds, as formulas.yaml has them."""
    return yaml.safe_load(Path(__file__).with_name("formulas.yaml").read_text(encoding="utf-8"))[name]


@dataclass(frozen=True)
class SumFormula:
    """A number that is a sum of whole multiples of units, such as 13 times `hidden` in each layer.

    name: of the formula in formulas.yaml, and of texts in messages.yaml: what a sentence calls the number, how much
    each unit gives (`terms_of_…`), and the units themselves (`unit_…`). sizes: a function of a case's values that
    gives the size of each unit.
    """

    name: str
    sizes: Callable[..., dict[str, int]]

    def units(self, case: dict[str, Any]) -> dict[str, int]:
        """The size of each unit in a case."""
        return self.sizes(*case.values())

    def number(self, case: dict[str, Any], added: Mapping[str, int] | None = None) -> int:
        """The right number of a case, or with the multiples that a mistake adds."""
        units, right = self.units(case), multiples(self.name)["right"]
        return sum(n * units[unit] for terms in (right, added or {}) for unit, n in terms.items())

    def wrong(self, case: dict[str, Any]) -> dict[str, int]:
        """The number that every known mistake gives."""
        return {key: self.number(case, added) for key, added in multiples(self.name)["mistakes"].items()}

    def can_tell_apart(self, case: dict[str, Any]) -> bool:
        """Whether no two mistakes give the same number; a mistake that this case does not show is left out."""
        wrong = [number for number in self.wrong(case).values() if number != self.number(case)]
        return len(set(wrong)) == len(wrong)

    def judge(self, world: JudgedWorld) -> Iterator[Judgement]:
        """Expects the right number in each case."""
        cases, got = world.inputs[0]["cases"], world.outputs[0]
        units, right, wrong = ([f(case) for case in cases] for f in (self.units, self.number, self.wrong))
        mistakes = {key: [of_case[key] for of_case in wrong] for key in wrong[0]}
        added = terms_of_difference(units, right, got)
        terms = [words[f"unit_{unit}"].format(n) for unit, n in added.items()]
        rules = [words["difference"].format(AND.join(terms))] * len(cases) if added else []
        for of_case in [] if added else units:
            values = {unit: n * of_case[unit] for unit, n in multiples(self.name)["right"].items()}
            rules.append(words[f"terms_of_{self.name}"].format(**values))
        names = [words[self.name].format(*case.values(), **case) for case in cases]
        yield from judge_numbers(names, right, got, mistakes, rules)

    def task(self, key: str, signature: str, make_inputs: Any) -> Task:
        """The Task with this formula. key: "05.count"."""
        return formula_task(key, signature, make_inputs, self.judge, multiples(self.name)["mistakes"])


def terms_of_difference(
    units: Sequence[Mapping[str, int]], right: Sequence[int], got: Sequence[Any]
) -> dict[str, Fraction]:
    """How many of which units explain, in all cases, what the learner's numbers are above the right ones.

    The fewest units are taken that do, at most three. It is {} where none do, for example if a number is no number.
    """
    if got == right or not all(isinstance(given, int | float) and isfinite(given) for given in got):
        return {}
    differences = [float(given - expected) for given, expected in zip(got, right, strict=True)]
    for names in (names for count in (1, 2, 3) for names in itertools.combinations(units[0], count)):
        columns = torch.tensor([[of_case[name] for name in names] for of_case in units], dtype=torch.float64)
        solution = torch.linalg.lstsq(columns, torch.tensor(differences).double()[:, None], driver="gelsd").solution
        terms = [Fraction(n).limit_denominator(4) for n in solution.flatten().tolist()]
        sums = columns @ torch.tensor([float(n) for n in terms], dtype=torch.float64)
        if all(terms) and all(map(isclose, sums.tolist(), differences)):
            return dict(zip(names, terms, strict=True))
    return {}


def run_formula(submitted, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """What the learner's function, `submitted`, returns for each case; 12.0 counts as 12."""
    return [simplified(submitted(*case.values())) for case in inputs["cases"]]


def judge_numbers(
    names: Sequence[Words],
    right: Sequence[int],
    got: Sequence[Any],
    mistakes: Mapping[str, Sequence[Any]],
    rules: Sequence[Words],
) -> Iterator[Judgement]:
    """One Judgement per number. A mistake is named if its numbers explain all of those that are wrong.

    All arguments have one item per number. mistakes: maps the key of a hint to the numbers that the mistake gives.
    rules: what the sentence about a wrong number says behind it.
    """
    # A float that is the right number but for rounding counts as the right number.
    got = [expected if is_near(expected, given) else given for expected, given in zip(right, got, strict=True)]
    known = [key for key, wrong in mistakes.items() if is_explained_by(wrong, got, right)]
    for name, expected, given, rule in zip(names, right, got, rules, strict=True):
        shown = f"{given:,}" if isinstance(given, int | float) else shortened(given)
        yield expect(given == expected, words["number"].format(name, shown, expected, rule), mistakes=known)


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


def formula_task(key: str, signature: str, make_inputs: Any, judge: Any, wrong: Mapping[str, Any]) -> Task:
    """A Task in one process, whose hints are those of the wrong formulas. key: "05.count". wrong: by keys of hints."""
    parts = {"make_inputs": make_inputs, "run_submission": run_formula, "judge": judge}
    return Task(key=key, signature=signature, runs_on="process", **parts)


# -- 05.count --------------------------------------------------------------------------------------------------------
# n layers, h hidden size, v entries of the vocabulary, s positions.
COUNT_FORMULA = SumFormula(
    "num_parameters",
    lambda n, h, v, s: dict(
        matrix=n * h * h, row=n * h, once=h, vocab=v * h, seq=s * h, square=h * h, entries=v, seqs=n * s * h
    ),
)


def make_count(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws the sizes of three GPTs, none of them a round number; the second has a single layer."""
    return [{"cases": [draw_gpt_sizes(rng, layers) for layers in (rng.integer(3, 40), 1, rng.integer(3, 40))]}]


def draw_gpt_sizes(rng: CaseGenerator, num_layers: int) -> dict[str, int]:
    """Sizes with which no two mistakes give the same number."""
    while True:
        sizes = {"num_layers": num_layers, "hidden": rng.integer(100, 4000)}
        sizes |= {"vocab": rng.integer(5_000, 60_000), "seq": rng.integer(100, 4000)}
        if COUNT_FORMULA.can_tell_apart(sizes):
            return sizes


COUNT = COUNT_FORMULA.task("05.count", "num_params(num_layers, hidden, vocab, seq)", make_count)

# -- 05.llama, of the chapter -----------------------------------------------------------------------------------------
# n layers, h hidden size, a heads, k heads of keys and values, f feed-forward width, v entries of the vocabulary.
LLAMA_FORMULA = SumFormula(
    "num_parameters_of_llama",
    lambda n, h, a, k, f, v: dict(
        matrix=n * h * h, grouped=n * h * k * (h // a), ffn=n * h * f, row=n * h, once=h, vocab=v * h
    ),
)


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
        if LLAMA_FORMULA.can_tell_apart(sizes):
            return sizes


LLAMA_SIGNATURE = "num_params(num_layers, hidden, num_heads, kv_heads, ffn, vocab)"
LLAMA = LLAMA_FORMULA.task("05.llama", LLAMA_SIGNATURE, make_llama)


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
    """Expects a dict with the bytes of each kind."""
    cases, got = world.inputs[0]["cases"], world.outputs[0]
    for output in got:
        is_dict = isinstance(output, dict) and output.keys() == set(KINDS)
        yield expect(is_dict, words["no_dict_of_states"].format(shortened(output)))
        if not is_dict:
            return
    right = [model_states(**case) for case in cases]
    wrong = {key: [mistake(case) for case in cases] for key, mistake in WRONG_STATES.items()}
    kinds = [(kind, i) for kind in KINDS for i in range(len(cases))]  # the kind and the number of its case
    yield from judge_numbers(
        [words["bytes_of_state"].format(words[kind], *cases[i].values()) for kind, i in kinds],
        [right[i][kind] for kind, i in kinds],
        [got[i][kind] for kind, i in kinds],
        {key: [of_cases[i][kind] for kind, i in kinds] for key, of_cases in wrong.items()},
        [rule_of_state(cases[i], kind, right[i][kind]) for kind, i in kinds],
    )


def rule_of_state(case: dict[str, Any], kind: str, num_bytes: int) -> Words:
    """Why a rank holds so many bytes of this kind."""
    size = BYTES_PER_PARAMETER[case["precision"]][KINDS.index(kind)]
    text = words["rule_of_shard" if case["zero"] >= SHARDED_FROM[kind] else "rule_of_full"]
    return text.format(words[kind], num_bytes // size, size, SHARDED_FROM[kind])


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
    "one_stage_late": with_sharding(parameters=NEVER, gradients=3, optimizer=2),
    "own_stage_only": lambda case: {
        kind: model_states(**case | {"zero": case["zero"] if case["zero"] == SHARDED_FROM[kind] else 0})[kind]
        for kind in KINDS
    },
    "optimizer_not_sharded": with_sharding(optimizer=NEVER),
    "stage_1_shards_gradients": with_sharding(gradients=1),
    "stage_2_shards_parameters": with_sharding(parameters=2),
    "share_rounded_down": lambda case: model_states(**case, shard_size=lambda num_params, dp: num_params // dp),
    "bytes_rounded": lambda case: {
        kind: ceil(Fraction(size, case["dp"])) if case["zero"] >= SHARDED_FROM[kind] else size
        for kind, size in model_states(**case | {"zero": 0}).items()
    },
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
#
# In ACTIVATIONS_FORMULA "split" is what tensor parallelism splits, and "rest" is what only sequence parallelism splits.
# "maps" are the attention maps, the matrices of s x s weights after softmax, where they are stored; "flash_maps" are
# those that flash attention does not store. Units with "full" are not divided by t.
def units_of_activations(
    s: int, b: int, h: int, a: int, t: int, sequence_parallel: bool, flash: bool
) -> dict[str, int]:
    """The number of elements in each unit of ACTIVATIONS_FORMULA; t divides s and a."""
    full, maps = s * b * h, a * s * s * b
    units = {"rest": full // (t if sequence_parallel else 1), "split": full // t, "full": full}
    stored = {"maps": maps // t, "full_maps": maps, "one_map": maps // t // a, "flash_maps": maps // t}
    return units | {name: size if flash == (name == "flash_maps") else 0 for name, size in stored.items()}


ACTIVATIONS_FORMULA = SumFormula("bytes_of_activations", units_of_activations)


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
        if ACTIVATIONS_FORMULA.can_tell_apart(case):
            return case


SIGNATURE = "layer_activations(s, b, h, a, t, sequence_parallel, flash)"
ACTIVATIONS = ACTIVATIONS_FORMULA.task("05.activations", SIGNATURE, make_activations)
