"""Judges 01.cost: the bytes and the alpha-beta seconds of two all-reduces, a ring and a tree.

The learner's function is asked 24 questions on one rank, where nothing is sent, and each of its numbers is compared
with the course's formulas. In the alpha-beta model a message of n bytes takes alpha + n / bandwidth seconds, where
alpha is the latency. A ring sends N - 1 messages of n / N bytes to reduce and as many to gather. A binary tree sends
the whole tensor in ceil(log2 N) rounds to the root and as many back.

The grader calls three functions:
  make_inputs     draws the questions, in one dict per rank
  run_submission  calls the learner's function, `submitted`, and returns its answers
  judge           makes Judgements from the questions, in inputs[0] of a JudgedWorld, and the answers, in outputs[0]

`words["…"]` is a sentence of messages.yaml, or what a sentence calls a value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.grading.collectives import LAB
from helpers.grading.kit.answers import is_number
from helpers.grading.kit.comparisons import expect, expect_only_ops
from helpers.grading.plain_data import is_tensor
from helpers.grading.task import JudgedWorld, Judgement, NumberGenerator, RankContext, Task
from helpers.quantities import costs
from helpers.specs import Link

words = LAB.messages

NUM_QUESTIONS = 24


@dataclass(frozen=True, kw_only=True)
class CostQuestion:
    """One question: a tensor of n bytes on N ranks, a latency of alpha seconds per message, bandwidth in bytes/s.

    As a text it is the learner's call.
    """

    n: int
    N: int
    alpha: float
    bandwidth: float

    def __str__(self) -> str:
        return f"all_reduce_cost({self.n}, {self.N}, {self.alpha:g}, {self.bandwidth:g})"

    def right_answer(self) -> tuple[float, float, float, str]:
        """Bytes that a rank sends in a ring, seconds of the ring, seconds of the tree, and the faster of the two."""
        link = Link(latency=self.alpha, bandwidth=self.bandwidth)
        ring, tree = (costs.seconds("all_reduce", self.n, self.N, link, by) for by in ("ring", "tree"))
        return costs.sent_bytes("all_reduce", self.n, self.N, "ring"), ring, tree, "ring" if ring < tree else "tree"


def make_inputs(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws questions with sizes from 100 bytes to 1 GB.

    Every other size is near the crossover, the size at which ring and tree take equally long.
    """
    # Numbers of ranks: seven fixed ones, as powers of 2, small ones and a single rank, and random ones for the rest.
    numbers_of_ranks = [24, *(rng.integer(3, 100) for _ in range(NUM_QUESTIONS - 7)), 2, 3, 5, 64, 1000, 1]
    cases = []
    for number, num_ranks in enumerate(numbers_of_ranks):
        alpha, bandwidth = rng.integer(1, 40) * 1e-6, rng.integer(1, 40) * 1e9
        exponent = 2 + 7 * (number * 5 % NUM_QUESTIONS) / NUM_QUESTIONS  # * 5 mixes small and large sizes
        num_bytes = int(10**exponent) + rng.integer(0, 99)
        crossover = crossover_bytes(num_ranks, alpha * bandwidth)
        if number % 2 and crossover > 100:  # bytes; 0 or less where there is no crossover
            num_bytes = int(crossover * (0.7, 1.4)[number // 2 % 2])  # below and above it in turn
        cases.append({"n": num_bytes, "N": num_ranks, "alpha": alpha, "bandwidth": bandwidth})
    cases[3] |= {"alpha": 0.0}  # an edge case: without latency only the bytes count
    return [{"cases": cases} for _ in range(world_size)]


def crossover_bytes(num_ranks: int, latency_bytes: float) -> float:
    """The size at which ring and tree take equally long; 0 or less if the ring is always faster.

    latency_bytes: latency times bandwidth. Per direction the ring takes (N - 1) (alpha + n / N / bandwidth) and the
    tree takes ceil(log2 N) (alpha + n / bandwidth).
    """
    if num_ranks <= 2:  # one rank sends nothing; with two, both take 1 round per direction and the ring half the bytes
        return 0.0
    rounds = (num_ranks - 1).bit_length()  # ceil(log2 N)
    return latency_bytes * (num_ranks - 1 - rounds) / (rounds - (num_ranks - 1) / num_ranks)


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The learner's answer to each question."""
    return [submitted(case["n"], case["N"], case["alpha"], case["bandwidth"]) for case in inputs["cases"]]


NAMES = [words[name] for name in ("ring_bytes", "ring_seconds", "tree_seconds", "faster_one")]  # of the four values


# -- judging ---------------------------------------------------------------------------------------------------------
def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects four values in each answer: three numbers, each judged over all questions, and the faster algorithm."""
    questions = [CostQuestion(**case) for case in world.inputs[0]["cases"]]
    answers = world.outputs[0]
    misshapen = next((answer for answer in answers if not isinstance(answer, list) or len(answer) != 4), None)
    # A learner's function may return anything, so only 60 characters are shown.
    yield expect(misshapen is None and len(answers) == len(questions), words["four_values"].format(str(misshapen)[:60]))
    if misshapen is not None:
        return
    for column in range(3):
        yield judge_column(column, questions, [answer[column] for answer in answers])
    yield judge_faster(questions, [answer[3] for answer in answers])
    yield from expect_only_ops(world, [])


def judge_column(column: int, questions: Sequence[CostQuestion], got: Sequence[Any]) -> Judgement:
    """One of the numbers, over all questions. column: its place in an answer. got: the learner's, in each answer."""
    for question, answer in zip(questions, got, strict=True):
        expected = question.right_answer()[column]
        if not is_close_number(expected, answer):
            name = "answer_is" if question.N > 1 else "answer_on_one_rank"
            values = value_text(answer), value_text(expected)
            return expect(False, words[name].format(question, NAMES[column], *values))
    return expect(True, NAMES[column])


def judge_faster(questions: Sequence[CostQuestion], got: Sequence[Any]) -> Judgement:
    """The name of the faster algorithm, over all questions. On one rank nothing is sent, so both names are right."""
    for question, name in zip(questions, got, strict=True):
        _, ring, tree, faster = question.right_answer()
        if name != faster and question.N > 1:
            what = NAMES[3].format(value_text(ring), value_text(tree))
            return expect(False, words["answer_is"].format(question, what, value_text(name), value_text(faster)))
    return expect(True, NAMES[3])


def value_text(value: Any) -> str:
    """A number with one decimal from 1000 on, else with six digits; 60 characters of anything else."""
    if not is_number(value):
        return repr(value)[:60]
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.6g}"


def is_close_number(right: float, got: Any) -> bool:
    """Whether two numbers are equal up to rounding; a tensor of one element counts as its number.

    A tensor may have been computed in float32, so its tolerance is larger.
    """
    value = got.item() if is_tensor(got) and got.numel() == 1 else got
    return is_number(value) and math.isclose(right, value, rel_tol=1e-6 if is_tensor(got) else 1e-9)


COST = Task(
    key="01.cost",
    signature="all_reduce_cost(num_bytes, world_size, latency, bandwidth)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    world_sizes=(1,),
    needs_torch=False,
)
