"""Tests of lab 04's judge: its right answers do what torch does, and its sentences say what is wrong in a step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from helpers.grading import grade, task_of
from helpers.grading.amp import number_formats, scaler, training_step
from helpers.grading.kit import model_tools
from helpers.grading.kit.histories import judge_history, overflow_notes, run_to_end
from helpers.grading.plain_data import ANY_VALUE, as_number, is_same
from helpers.grading.task import JudgedWorld, RunFailure
from helpers.learner.words import Words
from tests.grading.known_mistakes import repeated
from tests.grading.submissions import MUTANTS

SEEDS = range(4)


# -- histories -------------------------------------------------------------------------------------------------------
RIGHT = [{"scale": 2.0, "weights 0": torch.ones(2)}, {"scale": 4.0, "weights 0": torch.ones(2) * 3}]


def test_a_history_is_judged_up_to_its_first_wrong_step():
    got = [{"scale": 1.0, "weights 0": torch.ones(2)}, {"scale": 1.0, "weights 0": torch.zeros(2)}]
    findings = list(judge_history(RIGHT, got))
    assert [finding.ok for finding in findings] == [True, False, True]
    assert findings[1].message.en == "the scale after step 1 is 1.0, expected 2.0: it is 1/2 times the right value"
    assert findings[1].message.zh == "第 1 步后的 scale 是 1.0，应为 2.0：是正确值的 1/2 倍"


def test_a_note_says_where_overflows_were_so_far():
    assert [note.en for note in overflow_notes([False, True])] == ["", " (overflow in step 2)"]
    last = overflow_notes([[1], [], [0, 2]])[-1]
    assert last.en == " (overflow in step 1 on rank 1, step 3 on ranks 0 and 2)"
    got = [RIGHT[0], {"scale": 1.0, "weights 0": RIGHT[1]["weights 0"]}]
    (failed,) = [one for one in judge_history(RIGHT, got, notes=overflow_notes([True, False])) if not one.ok]
    assert (
        failed.message.en
        == "the scale after step 2 (overflow in step 1) is 1.0, expected 4.0: it is 1/4 times the right value"
    )
    assert failed.message.zh == "第 2 步后的 scale（第 1 步溢出）是 1.0，应为 4.0：是正确值的 1/4 倍"


def test_nan_is_alike_to_nan_and_a_tensor_of_one_to_its_number():
    nan = [{"scale": math.nan, "weights 0": torch.tensor([math.nan, math.inf])}]
    assert is_same(nan, [{"scale": torch.tensor([math.nan]), "weights 0": torch.tensor([math.nan, math.inf])}])
    assert not is_same(nan, [{"scale": math.nan, "weights 0": torch.tensor([math.nan, 1.0])}])
    assert not is_same(nan, "None") and not is_same(nan, [3]) and is_same([ANY_VALUE, 2], [3, 2])
    assert (as_number(torch.tensor(2)), as_number(3), as_number(True), as_number("x")) == (2.0, 3.0, True, "x")


@pytest.mark.parametrize("got", ["None", None, [], [3, 4], [{}], [{}, {}, {}]])
def test_whatever_a_stranger_returns_is_no_history(got):
    assert not all(finding.ok for finding in judge_history(RIGHT, got))


# -- inputs and right answers ------------------------------------------------------------------------------------------
def world_of(inputs, outputs) -> JudgedWorld:
    return JudgedWorld(size=len(inputs), inputs=inputs, outputs=outputs, logs=[], marks=[])


@repeated("seed", SEEDS)
def test_the_largest_scale_fits_and_twice_as_much_does_not(seed):
    (inputs,) = task_of("04.scale").inputs(seed, 1)
    for tensors in inputs["cases"]:
        scale = number_formats.largest_scale(number_formats.largest_of(tensors))
        assert all((tensor * scale).half().isfinite().all() for tensor in tensors)
        assert not all((tensor * scale * 2).half().isfinite().all() for tensor in tensors)


@repeated("size", [2, 3, 4, 5])
def test_ranks_overflow_differently_often_so_that_asking_only_then_hangs(size):
    inputs = task_of("04.overflow").inputs(size, size)
    counts = {sum(any(not part.isfinite().all() for part in shard) for shard in one["steps"]) for one in inputs}
    assert len(counts) > 1


# -- compared with torch ---------------------------------------------------------------------------------------------
@repeated("seed", SEEDS)
def test_the_right_scaler_does_what_torchs_does(seed):
    """Same scales and same weights, step by step, through overflows."""
    task = task_of("04.scaler")
    for case in task.variations.cases(seed):
        (given,) = task.inputs(seed, 1, case)
        theirs = torch.amp.GradScaler("cpu", init_scale=given["scale"], growth_interval=given["interval"])
        theirs.scale(torch.ones(()))
        weights = [nn.Parameter(tensor.clone()) for tensor in given["weights"]]
        optimizer = torch.optim.SGD(weights, lr=scaler.LEARNING_RATE)
        ours = run_to_end(scaler.run_scaler(scaler.ReferenceScaler, given, context=None))
        for gradients, step in zip(given["steps"], ours, strict=True):
            for parameter, gradient in zip(weights, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient * theirs.get_scale()
            theirs.step(optimizer)
            theirs.update()
            assert step["scale"] == theirs.get_scale()
            for i, parameter in enumerate(weights):
                torch.testing.assert_close(step[f"weights {i}"], parameter.detach(), rtol=1e-6, atol=1e-6)


class Theirs:
    """torch's GradScaler with the two things that the grader asks of its own."""

    def __init__(self, scale: float):
        self.inner = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**6)
        self.scale, self.update, self.get_scale = self.inner.scale, self.inner.update, self.inner.get_scale

    def unscale_(self, optimizer: model_tools.GradientDescent) -> None:
        optimizer.param_groups = [{"params": optimizer.parameters}]
        self.inner.unscale_(optimizer)

    def step(self, optimizer: model_tools.GradientDescent) -> None:
        optimizer.param_groups = [{"params": optimizer.parameters}]
        self.inner.step(optimizer)


def history_of(step, inputs) -> list[dict]:
    return run_to_end(training_step.run_submission(step, inputs, context=None))


def test_the_scaler_that_a_training_step_is_given_does_what_torchs_does(monkeypatch):
    (inputs,) = task_of("04.order").inputs(3, 1)
    ours = history_of(training_step.right_step, inputs)
    monkeypatch.setattr(training_step, "Scaler", Theirs)
    assert is_same(history_of(training_step.right_step, inputs), ours)


@pytest.mark.parametrize(
    ("calls", "says", "key"),
    [
        (("unscale_", "unscale_"), "already been called", "unscaled_twice"),
        (("step", "unscale_"), "called after step", "unscaled_late"),
        (("step", "turn", "step"), "update() was not called", "update_forgotten"),
        (("unscale_", "update", "step", "turn", "unscale_"), "update() came before step", "update_before_step"),
        (("step", "scale", "step"), "another micro-batch", "steps_every_micro_batch"),
        (("update",), "nothing to go by", "update_before_step"),
        (("cleared", "unscale_"), "no gradients", "unscaled_early"),
    ],
)
def test_the_scaler_refuses_what_is_out_of_order_and_the_task_knows_why(calls, says, key):
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer, one = model_tools.GradientDescent([weight], 0.1), training_step.Scaler(8.0)
    does = {"update": one.update, "scale": lambda: one.scale(torch.ones(())), "cleared": optimizer.zero_grad}
    does |= {"unscale_": lambda: one.unscale_(optimizer), "step": lambda: one.step(optimizer)}
    does["turn"] = lambda: setattr(one, "turn", one.turn + 1)
    *before, last = calls
    for name in before:
        does[name]()
    with pytest.raises(RuntimeError) as error:
        does[last]()
    assert says in str(error.value)
    failure = RunFailure(kind="exception", text=f"rank 0 raised RuntimeError: {error.value}")
    assert training_step.ORDER.recognise_failure(failure) == [key]


# -- verdicts --------------------------------------------------------------------------------------------------------
def test_masters_let_16_bits_move_where_updates_alone_would_vanish():
    task, (mutant,) = task_of("04.master"), [one for one in MUTANTS if one.name == "masters_in_16_bits"]
    answers = number_formats.ReferenceMasterWeights, mutant.names()["MasterWeights"]
    for case in task.variations.cases(5):
        (given,) = task.inputs(5, 1, case)
        histories = [run_to_end(number_formats.run_master(answer, given, context=None)) for answer in answers]
        with_masters, without = (history[-1]["weights 0"] for history in histories)
        start = given["weights"][0].float()
        assert not torch.equal(with_masters, start)
        assert (without == start).float().mean() > (with_masters == start).float().mean()


def test_a_verdict_names_the_step_and_what_the_rule_makes_of_it(ranks):
    def step_together(optimizer, parameters, scale):
        optimizer.step()
        return scale

    text = grade("04.overflow", step_together, ranks=ranks, seed=1).text()
    assert "on rank 0 of 1 the update in step 1, in which no rank has an overflow" in text


def updates_of(*weights: float) -> list[dict]:
    return [{"weights 0": torch.tensor([one, 2 * one])} for one in weights]


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (updates_of(1.0, 1.0, 7.0), "the update in step 3! is 3 times the right one, for all weights"),
        (updates_of(1.0, 1.0, 1.0), "step 3! does not change the weights, expected an update"),
        (updates_of(1.0, 2.0, 3.0), "step 2! changes the weights, expected no change"),
        ([*updates_of(1.0, 1.0), {"weights 0": torch.tensor([5.0, 5.0])}], None),
        ([*updates_of(1.0, 1.0), {"weights 0": None}], None),
        (updates_of(1.0, 1.0, 3.0), None),
    ],
)
def test_a_wrong_update_is_described(got, says):
    message = training_step.describe_update(updates_of(1.0, 1.0, 3.0), got, updates_of(0.0)[0], [Words.of("!")] * 3)
    assert (message and message.en) == says


def test_gradients_of_an_earlier_step_are_there_in_the_first_call(ranks):
    def train_step(model, optimizer, scaler, micro_batches, max_norm):
        for x, y in micro_batches:
            scaler.scale(((model(x) - y) ** 2).mean() / len(micro_batches)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    assert grade("04.order", train_step, ranks=ranks, seed=1).mistake == "not_cleared"


@pytest.mark.parametrize("answer", [None, "2**14", True, [1.0], torch.ones(2), math.nan, math.inf, 0.0, -1.0])
def test_an_answer_that_is_no_scale_is_said_and_not_raised(answer):
    (inputs,) = task_of("04.scale").inputs(1, 1)
    findings = list(number_formats.judge_scale(world_of([inputs], [[answer] * len(inputs["cases"])])))
    assert not any(finding.ok for finding in findings)
