"""Lab 14: its right answers are what the course's layer of experts does, and its cases have what the texts speak of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from helpers.grading import task_of
from helpers.grading.experts import balance, exchange, groups
from helpers.grading.kit.tensor_comparisons import is_close
from helpers.parallel.experts import expert_parallel, update_bias
from tests.grading.known_mistakes import repeated, world_of

SEEDS = range(4)
SIZES = (1, 2, 3, 4, 5)


def inputs_of(name: str, size: int, seed: int = 0) -> list[list[dict]]:
    """What a check asks: for each case the inputs of all ranks."""
    task = task_of(f"14.{name}")
    return [task.inputs(seed, size, case) for case in task.variations.cases(seed)]


# -- route -----------------------------------------------------------------------------------------------------------
@repeated("seed", SEEDS)
def test_the_cases_of_route_have_what_its_text_speaks_of(seed):
    cases = [inputs for (inputs,) in inputs_of("route", 1, seed)]
    for kind in ("softmax", "sigmoid"):
        of_kind = [one for one in cases if one["kind"] == kind]
        assert {one["bias"] is None for one in of_kind} == {True, False}
        ks = {("one", "some", "all")[(one["k"] > 1) + (one["k"] == one["logits"].shape[1])] for one in of_kind}
        assert ks == {"one", "some", "all"}
    biases = [one["bias"] for one in cases if one["bias"] is not None]
    assert any(bias.min() > 1 for bias in biases) and any(bias.max() < -1 for bias in biases)
    assert any(len(one["logits"]) == 1 for one in cases)


# -- dispatch and combine --------------------------------------------------------------------------------------------
@repeated("size", SIZES)
def test_the_cases_of_dispatch_have_what_its_text_speaks_of(size):
    _, dropped, all_to_one, one_sends_nothing, one_choice, all_chosen, one_is_idle = inputs_of("dispatch", size)
    counts = sum(exchange.sent_rows(one["experts"], one["num_experts"])[1] for one in dropped)
    assert (counts == 0).any() and all((one["experts"] < 0).any() for one in dropped)
    assert all((one["experts"][-1] < 0).all() and (one["experts"] >= 0).any() for one in dropped)
    received = [len(exchange.right_rows(all_to_one, rank)) for rank in range(size)]
    assert not any(received[:-1]) and received[-1]
    assert exchange.sent_bytes(one_sends_nothing[0]) == 0
    assert all(one["experts"].shape[1] == 1 for one in one_choice)
    assert all(one["num_experts"] == one["experts"].shape[1] for one in all_chosen)
    sent = [exchange.sent_bytes(one) for one in one_is_idle]
    received = [len(exchange.right_rows(one_is_idle, rank)) for rank in range(size)]
    assert (0, 0) in zip(sent, received, strict=True) and (any(sent) or size == 1)
    for inputs in inputs_of("dispatch", size):
        assert all(len(set(kept)) == len(kept) for one in inputs for kept in kept_choices(one["experts"]))


def kept_choices(experts: torch.Tensor) -> list[list[int]]:
    """For each token the experts that it has chosen."""
    return [[expert for expert in chosen if expert >= 0] for chosen in experts.tolist()]


def test_no_rows_of_another_dtype_are_told_apart_from_the_right_ones():
    task = task_of("14.dispatch")
    case = task.variations.cases(0)[3]
    world = world_of("14.dispatch", 1, case=case)  # in which the only rank gets no row
    right = exchange.right_dispatch(world.inputs, 0)
    no_rows = right[0].to(torch.float16)
    wrong = [one for one in task.judge(replace(world, outputs=[[no_rows, *right[1:]]])) if not one.ok]
    assert len(wrong) == 1 and "float16" in wrong[0].message.en


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_expert_gets_the_rows_that_it_gets_in_the_course(ranks, size):
    asked = inputs_of("dispatch", size)

    def rows_of_all_cases():
        rows = []
        for inputs in asked:
            own = inputs[dist.get_rank()]
            weights = torch.ones(own["experts"].shape, dtype=own["x"].dtype)
            expert_parallel(
                own["x"],
                own["experts"],
                weights,
                lambda r, _: rows.append(r) or r,
                own["num_experts"],
                dist.group.WORLD,
            )
        return rows

    for rank, rows in enumerate(ranks[:size].run(rows_of_all_cases)):
        for inputs, got in zip(asked, rows, strict=True):
            assert torch.equal(exchange.right_dispatch(inputs, rank)[0], got)


@repeated("size", SIZES)
def test_weights_of_choices_that_are_sent_are_positive_negative_and_zero(size):
    asked = [one for inputs in inputs_of("combine", size) for one in inputs]
    signs = {sign for one in asked for sign in one["weights"][one["experts"] >= 0].sign().tolist()}
    assert signs == {-1, 0, 1}


@repeated("size", SIZES)
def test_combine_adds_up_what_each_token_has_chosen(size):
    for inputs in inputs_of("combine", size):
        for rank, one in enumerate(inputs):  # expert e multiplies its rows by e + 1
            factors = [expert + 1 for expert, _, _ in exchange.right_rows(inputs, rank)]
            one["outputs"] = exchange.right_dispatch(inputs, rank)[0] * torch.tensor(factors)[:, None]
        for one, right in zip(inputs, exchange.right_combine(inputs), strict=True):
            weights = one["weights"].clone().requires_grad_()
            result = ((one["experts"] + 1) * weights).sum(1, keepdim=True) * one["x"]  # 0 for a choice of -1
            (one["factor"] * result).sum().backward()
            assert is_close(result.detach(), right["result"]) and is_close(weights.grad, right["weights"])


# -- bias ------------------------------------------------------------------------------------------------------------
@repeated("seed", SEEDS)
def test_the_bias_moves_as_in_the_course(seed):
    for bias, counts, rate in task_of("14.bias").inputs(seed, 1)[0]["cases"]:
        expected = torch.tensor(bias, dtype=torch.float64)
        update_bias(expected, torch.tensor(counts).sum(0), rate)
        assert torch.tensor(balance.moved_bias(bias, counts, rate), dtype=torch.float64).allclose(expected)


@repeated("seed", SEEDS)
def test_some_expert_has_the_mean_or_the_mean_rounded_down_or_up(seed):
    found = set()
    for _, counts, _ in task_of("14.bias").inputs(seed, 1)[0]["cases"]:
        totals = [sum(of_ranks) for of_ranks in zip(*counts, strict=True)]
        mean = sum(totals) / len(totals)
        found |= {
            ("down", "exact", "up")[(total > mean) - (total < mean) + 1] for total in totals if abs(total - mean) < 1
        }
    assert found == {"down", "exact", "up"}


# -- groups ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", groups.KINDS)
@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 1, 2), (1, 3, 2), (2, 3, 1), (3, 2, 4)])
def test_the_sum_over_the_ranks_divided_is_the_mean_over_all_tokens(kind, sizes):
    ep, edp, tp = sizes
    # of_tokens[p][e][s]: the gradient of the tokens of the ranks at p and e, for shard or expert s of this kind
    of_tokens = torch.randn(edp, ep, ep * tp, dtype=torch.float64)

    def place(rank: int) -> tuple[int, int, int]:
        return rank // (ep * tp), rank // tp % ep, rank % tp

    def gradient_of(rank: int) -> torch.Tensor:
        p, e, t = place(rank)
        return of_tokens[p, :, e * tp + t].sum() if kind == "expert" else of_tokens[p, e, t if kind != "router" else 0]

    for rank in range(ep * edp * tp):
        _, e, t = place(rank)
        shard = {"expert": e * tp + t, "router": 0}.get(kind, t)
        group, divisor = groups.gradient_group(kind, rank, *sizes)
        assert rank in group and group == sorted(group)
        assert sum(map(gradient_of, group)).div(divisor).allclose(of_tokens[..., shard].mean())
