"""Judges wb.grpo: the loss of GRPO, with advantages within a group of answers, the clipped ratio, and two means.

GRPO trains a language model on several answers to each prompt, its group. Each answer has a reward, and its advantage
is the reward compared with the others of the group. Loss and gradient are compared with the course's own formula,
which is from Shao et al. 2024, DeepSeekMath, https://arxiv.org/abs/2402.03300, without the KL term.

How to read it. A task has three functions, whose names begin with make, run and judge. The first draws the inputs of
one case with the generator `rng`; a case is one choice of memory layouts and values, numbered `rng.case.number`. The
second calls the learner's answer, `submitted`, and the third compares what it returned with the right values, yielding
one Judgement per comparison. There is one process, so `world.inputs[0]` and `world.outputs[0]` are all there is. The
mistakes that learners often make are in mistakes.yaml. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.kit.model_tools import describe_if_detached, one_thread
from helpers.grading.kit.tensor_comparisons import expect_tensor
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task, Variations
from helpers.grading.tensor_cases import CaseGenerator, copied
from helpers.grading.whiteboard import LAB

words = LAB.messages

# The values that are judged: name -> how a sentence calls it. "logp" stands for its gradient.
VALUE_NAMES = {"loss": words["loss"], "logp": words["gradient_of_logp"]}
EPSILON = 1e-4  # added to the standard deviation of a group's rewards
LOG_RATIO_STD = 0.4  # with clips of 0.1 to 0.3 about half of the tokens are clipped


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Answers of different lengths, with at least one token each. In the second case one group has equal rewards.

    The inputs are in the order of the answer's arguments: the log-probability of each token under the present model and
    under the old one (answers, tokens), the reward of each answer, 1 for each token of an answer and 0 for padding, the
    answers in a group, and by how much the ratio of probabilities may differ from 1.
    """
    group, tokens = rng.integer(3, 5), rng.integer(6, 8)
    answers = 3 * group  # to three prompts
    old = rng.tensor(answers, tokens) - 2  # log-probabilities around -2
    rewards = rng.tensor(answers)
    if rng.case.number == 1:
        rewards[group : 2 * group] = 1.0
    lengths = torch.randint(1, tokens + 1, (answers, 1), generator=rng)
    lengths[0], lengths[-1] = 1, tokens - 1  # the shortest answer there can be, and one with padding in any case
    mask = (torch.arange(tokens) < lengths).to(old.dtype)
    logp = old + LOG_RATIO_STD * rng.normal(answers, tokens)
    inputs = {"logp": logp, "old_logp": old, "rewards": rewards, "mask": mask, "group": group}
    return [inputs | {"clip": rng.integer(1, 3) / 10}]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """The learner's loss and its gradient; or under "returned" what was returned in place of a loss with a gradient."""
    arguments = {name: copied(one) if isinstance(one, Tensor) else one for name, one in inputs.items()}
    logp = arguments["logp"].requires_grad_()
    with one_thread():
        loss = submitted(*arguments.values())
        if describe_if_detached(loss) or loss.numel() != 1:
            return {"returned": describe_if_detached(loss) or f"Tensor{tuple(loss.shape)}"}
        loss.sum().backward()
    return {"loss": loss.detach().clone().reshape(()), "logp": logp.grad}


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges the loss and its gradient."""
    inputs, got = world.inputs[0], world.outputs[0]
    if "returned" in got:
        yield Judgement(ok=False, message=words["grpo_loss_returns"].format(got["returned"]))
        return
    right = right_values(**inputs)
    for name, what in VALUE_NAMES.items():
        yield expect_tensor(what, right[name], got[name])


@one_thread()
def right_values(
    logp: Tensor, old_logp: Tensor, rewards: Tensor, mask: Tensor, group: int, clip: float
) -> dict[str, Tensor]:
    """The loss and its gradient.

    The advantage of an answer is its reward, minus the mean of its group, divided by the group's standard deviation.
    The objective of a token is the smaller of ratio and clipped ratio, each times the advantage.
    """
    groups = rewards.reshape(-1, group)  # (prompts, answers)
    advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + EPSILON)
    logp, advantage = logp.clone().requires_grad_(), advantages.reshape(-1, 1)
    ratio = (logp - old_logp).exp()
    objective = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    loss = -((objective * mask).sum(1) / mask.sum(1)).mean()
    loss.backward()
    return {"loss": loss.detach(), "logp": logp.grad}


GRPO = Task(
    key="wb.grpo",
    signature="grpo_loss(logp, old_logp, rewards, mask, group, clip)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    runs_on="process",
    variations=Variations(layouts=("contiguous", "transposed"), min_cases=3),
    must_not_change=("logp", "old_logp", "rewards", "mask"),
)
