"""Judges wb.grpo: the loss of GRPO, with advantages within a group of answers, the clipped ratio, and two means.

GRPO trains a language model on several answers to each prompt, its group. Each answer has a reward, and its advantage
is the reward compared with the others of the group. Loss and gradient are compared with the course's own formula, and
with that formula changed by one known mistake. The formula is from Shao et al. 2024, DeepSeekMath,
https://arxiv.org/abs/2402.03300, without the KL term.

How to read it. A task has three functions, whose names begin with make, run and judge. The first draws the inputs of
one case with the generator `rng`; a case is one choice of memory layouts and values, numbered `rng.case.number`. The
second calls the learner's answer, `submitted`, and the third compares what it returned with the right values, yielding
one Judgement per comparison. There is one process, so `world.inputs[0]` and `world.outputs[0]` are all there is. A
mistake is a wrong solution that learners often write, and its name, such as "not_clipped", is the key of its hint in
hints.yaml. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.kit.model_tools import describe_if_detached, one_thread
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.grading.whiteboard import LAB
from helpers.grading.whiteboard.values import judge_values

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
    arguments = {name: one.clone() if isinstance(one, Tensor) else one for name, one in inputs.items()}
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
        # "Tensor(3, 4)" has a gradient, but is no single number. "Tensor(requires_grad=False)" has none.
        is_shape = got["returned"].startswith("Tensor(") and "requires_grad" not in got["returned"]
        mistakes = () if is_shape else ("no_gradient",)
        yield Judgement(ok=False, message=words["grpo_loss_returns"].format(got["returned"]), mistakes=mistakes)
        return
    yield from judge_values(VALUE_NAMES, loss_of(inputs), got, {key: loss_of(inputs, key) for key in MISTAKES})


@one_thread()
def loss_of(inputs: dict[str, Any], mistake: str = "") -> dict[str, Tensor]:
    """The loss and its gradient, right except for this mistake; "" for none."""
    logp, mask = inputs["logp"].clone().requires_grad_(), inputs["mask"]
    old = logp.detach() if mistake == "old_ignored" else inputs["old_logp"]
    log_ratio = old - logp if mistake == "ratio_inverted" else logp - old
    log_ratio = (log_ratio * mask).sum(1, keepdim=True) if mistake == "sequence_ratio" else log_ratio
    ratio = log_ratio if mistake == "log_ratio" else log_ratio.exp()
    objective = surrogate(ratio, advantages(inputs, mistake)[:, None], inputs["clip"], mistake)
    if mistake == "padding_counted":
        loss = -objective.mean()
    elif mistake == "mean_over_all_tokens":
        loss = -(objective * mask).sum() / mask.sum()
    else:
        by_answer = (objective * mask).sum(1) / (1 if mistake == "tokens_summed" else mask.sum(1))
        loss = -(by_answer.sum() if mistake == "answers_summed" else by_answer.mean())
    loss = -loss if mistake == "sign_forgotten" else loss
    loss.backward()
    return {"loss": loss.detach(), "logp": logp.grad}


def advantages(inputs: dict[str, Any], mistake: str) -> Tensor:
    """One advantage per answer: its reward, minus the mean of its group, divided by the group's standard deviation."""
    groups = inputs["rewards"].reshape(-1, inputs["group"])  # (prompts, answers)
    groups = groups.reshape(1, -1) if mistake == "over_the_batch" else groups
    if mistake == "groups_interleaved":  # row by row they are (group, prompts)
        groups = inputs["rewards"].reshape(inputs["group"], -1).T
    std = groups.std(1, keepdim=True, correction=0 if mistake == "other_std" else 1)
    std = std.square() if mistake == "variance" else std
    epsilon = 0.0 if mistake == "divided_by_zero" else EPSILON
    divisor = 1.0 if mistake == "spread_forgotten" else std + epsilon
    mean = 0.0 if mistake == "mean_forgotten" else groups.mean(1, keepdim=True)
    advantage = (groups - mean) / divisor
    return (advantage.T if mistake == "groups_interleaved" else advantage).flatten()


def surrogate(ratio: Tensor, advantage: Tensor, clip: float, mistake: str) -> Tensor:
    """The clipped objective of each token: the smaller of ratio and clipped ratio, each times the advantage."""
    plain, clipped = ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage
    smaller, one_side = torch.minimum(ratio, ratio.clamp(1 - clip, 1 + clip)), ratio.clamp(max=1 + clip) * advantage
    wrong = {"smaller_ratio": smaller * advantage, "clipped_above": torch.minimum(plain, one_side)}
    wrong |= {"not_clipped": plain, "clipped_alone": clipped, "larger_of_both": torch.maximum(plain, clipped)}
    return wrong.get(mistake, torch.minimum(plain, clipped))


# The keys of the hints for the mistakes that `loss_of` can make.
MISTAKES = [
    *"sign_forgotten old_ignored ratio_inverted log_ratio sequence_ratio smaller_ratio clipped_above".split(),
    *"not_clipped clipped_alone larger_of_both divided_by_zero over_the_batch groups_interleaved".split(),
    *"mean_forgotten other_std variance spread_forgotten padding_counted mean_over_all_tokens".split(),
    *"tokens_summed answers_summed".split(),
]
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
