"""Tests of lab 05's judge: it has the chapter's formulas, counts live bytes, and explains a wrong number."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers.grading import grade, task_of
from helpers.grading.kit.histories import run_to_end
from helpers.grading.kit.model_tools import MemoryMeter, describe_if_detached, one_thread
from helpers.grading.memory import byte_formulas, saved_activations, training_loops
from helpers.grading.plain_data import simplified
from helpers.grading.task import RankContext
from helpers.predict.memory import activations_per_layer, model_states
from helpers.specs import ModelSpec, Plan
from helpers.workloads.gpt import GPT, GPTConfig
from tests.grading.known_mistakes import repeated
from tests.grading.submissions import MUTANTS, name_of

SEEDS = range(6)
FLOATS = 8  # bytes


# -- formulas --------------------------------------------------------------------------------------------------------
def test_the_number_of_parameters_is_that_of_a_gpt():
    sizes = {"num_layers": 3, "hidden": 32, "vocab": 101, "seq": 24}
    spec = ModelSpec(**sizes, num_heads=4)
    gpt = GPT(GPTConfig(vocab_size=101, context=24, num_layers=3, num_heads=4, hidden=32))
    expected = sum(parameter.numel() for parameter in gpt.parameters())
    assert byte_formulas.COUNT_FORMULA.number(*sizes.values()) == spec.num_params == expected


@pytest.mark.parametrize("precision", byte_formulas.BYTES_PER_PARAMETER)
@pytest.mark.parametrize("zero", range(4))
def test_model_states_are_those_of_the_chapter(precision, zero):
    right = model_states(1_000_003, Plan(dp=7, zero=zero, precision=precision))
    expected = {kind: getattr(right, kind) for kind in byte_formulas.KINDS}
    assert byte_formulas.model_states(1_000_003, precision, zero, 7) == expected


def test_model_states_are_the_papers():
    """Rajbhandari et al. 2020, figure 1: 7.5e9 parameters on 64 ranks."""
    totals = [sum(byte_formulas.model_states(7_500_000_000, "mixed", zero, 64).values()) / 1e9 for zero in range(4)]
    assert [round(total, 1) for total in totals] == [120.0, 31.4, 16.6, 1.9]


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize(("t", "sequence_parallel"), [(1, False), (4, False), (4, True)])
def test_activations_are_those_of_the_chapter(t, sequence_parallel, flash):
    case = {"s": 512, "b": 3, "h": 256, "a": 8, "t": t, "sequence_parallel": sequence_parallel, "flash": flash}
    plan = Plan(
        tp=t, sequence_parallel=sequence_parallel, attention="flash" if flash else "materialized", micro_batch=3
    )
    model = ModelSpec(num_layers=1, hidden=256, num_heads=8, vocab=1024, seq=512)
    assert byte_formulas.ACTIVATIONS_FORMULA.number(*case.values()) == activations_per_layer(model, plan)


def one_byte_more(num_params, precision, zero, dp):
    """An answer that nobody foresees: right but for one byte of the optimizer states."""
    states = byte_formulas.model_states(num_params, precision, zero, dp)
    return states | {"optimizer": states["optimizer"] + 1}


@pytest.mark.parametrize(
    ("key", "function", "rule"),
    [
        ("05.count", lambda num_layers, hidden, vocab, seq: 7, "\n  Here the matrices of the layers have "),
        ("05.states", one_byte_more, "\n  Before ZeRO-1, every rank holds all optimizer states, "),
    ],
)
def test_below_a_wrong_number_stands_how_the_right_one_comes_about(key, function, rule, ranks):
    verdict = grade(key, function, ranks=ranks)
    assert verdict.mistake is None and rule in verdict.text("en")


@pytest.mark.parametrize("value", [12, 12.0, torch.tensor(12), torch.tensor([12.0])])
def test_a_division_without_a_rest_is_no_mistake(value):
    assert simplified({"bytes": value}) == {"bytes": 12}
    assert type(simplified(value)) is int
    assert simplified(12.5) == 12.5


@pytest.mark.parametrize("added", [{"row": -3}, {"matrix": -4, "row": -1}, {"seq": -1, "seqs": 1}, {"entries": 1}])
def test_the_terms_that_a_wrong_formula_adds_are_found(added):
    formula, cases = byte_formulas.COUNT_FORMULA, task_of("05.count").inputs(3, 1)[0]["cases"]
    units, right = [formula.sizes(*case) for case in cases], [formula.number(*case) for case in cases]
    got = [n + sum(m * of_case[unit] for unit, m in added.items()) for n, of_case in zip(right, units, strict=True)]
    assert byte_formulas.terms_of_difference(units, right, got) == added
    for strange in (right, [None] * len(right), [one * 7 // 5 for one in right], [float("nan")] * len(right)):
        assert byte_formulas.terms_of_difference(units, right, strange) == {}


def test_two_mistakes_in_the_model_states_draw_the_hint_of_neither(ranks):
    """Each explains one kind, and a hint would be about half of what is wrong."""

    def two_mistakes(num_params, precision, zero, dp):
        states = byte_formulas.model_states(num_params, precision, zero, dp)
        unsharded = byte_formulas.model_states(num_params, precision, 0, dp)["optimizer"]
        return states | {"optimizer": unsharded, "gradients": 2 * states["gradients"]}

    assert grade("05.states", two_mistakes, ranks=ranks).mistake is None


def test_a_mistake_is_named_whatever_memory_its_code_needs(ranks):
    def all_logits(x, weight, targets, chunk):
        return F.cross_entropy(x @ weight.T, targets, reduction="sum") / len(targets)

    assert grade("05.chunked", all_logits, ranks=ranks).mistake == "padding_counted"


@repeated("seed", SEEDS)
def test_large_logits_overflow_exp_and_are_exact(seed):
    task = task_of("05.chunked")
    for case in task.variations.cases(seed):
        if case.values == "large":
            x, weight = (task.inputs(seed, 1, case)[0][name] for name in ("x", "weight"))
            logits = x @ weight.T
            assert torch.equal(logits.double(), x.double() @ weight.double().T)
            assert logits.exp().isinf().any() or len(x) < 15


def test_a_block_that_never_runs_draws_no_hint_about_what_follows_from_that(ranks):
    verdict = grade("05.checkpoint", lambda function, x, positions: x, ranks=ranks)
    assert verdict.mistake is None and "the number of times that function runs for block 0" in verdict.text("en")


def test_the_factor_of_every_part_is_found_though_a_part_is_zero():
    parts = [{"w": torch.tensor(one, dtype=torch.float64)} for one in ([1.0, 2.0, 0.0], [0.0] * 3, [0.0, 1.0, 5.0])]
    total = {"w": 0.5 * parts[0]["w"] + 0.25 * parts[2]["w"]}
    assert training_loops.factors_of(parts, total) == pytest.approx([0.5, 0.0, 0.25])
    assert training_loops.factors_of(parts, {"w": torch.tensor([1.0, 0.0, 0.0])}) == []
    assert training_loops.factors_of(parts, {"w": None}) == []


# -- the meter -------------------------------------------------------------------------------------------------------
def test_the_meter_counts_what_is_alive():
    there = torch.ones(100, dtype=torch.float64)
    with MemoryMeter([there]) as meter:
        a = there * 2
        view = a[10:]
        there.add_(1)
        assert meter.current_bytes == meter.peak_bytes == meter.largest_bytes == 100 * FLOATS
        b = torch.cat([a, view])
        assert meter.current_bytes == 290 * FLOATS and meter.largest_bytes == 190 * FLOATS
        del b, a
        assert meter.current_bytes == 100 * FLOATS, "the view keeps the storage"
        del view, there
        assert meter.current_bytes == 0 and meter.peak_bytes == 290 * FLOATS


def test_the_meter_sees_what_autograd_keeps_and_lets_go():
    layers = nn.Sequential(*(nn.Tanh() for _ in range(5)))
    x = torch.ones(100, dtype=torch.float64, requires_grad=True)
    with MemoryMeter([x]) as meter:
        loss = layers(x).sum()
        assert meter.current_bytes == (5 * 100 + 1) * FLOATS
        loss.backward()
        del loss
        assert meter.current_bytes == 100 * FLOATS, "the gradient of x is left"


def test_the_meter_does_not_count_what_only_a_cycle_holds():
    with MemoryMeter() as meter:
        ring = [torch.ones(100)]
        ring.append(ring)
        del ring
        assert meter.current_bytes == 0 and meter.peak_bytes == 400


def test_one_thread_is_given_back():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), one_thread():
        assert torch.get_num_threads() == 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


# -- bytes -----------------------------------------------------------------------------------------------------------
def run_mutant(name: str, key: str, seed: int) -> tuple[dict, Any, list[tuple[str, float]]]:
    """Inputs, outputs and bytes of a mutant, in this process."""
    task, (mutant,) = task_of(key), (one.names() for one in MUTANTS if name_of(one) == f"05_memory/{name}")
    inputs, context = task.inputs(seed, 1)[0], RankContext(0, 1)
    with torch.random.fork_rng(devices=[]), one_thread():
        outputs = task.run_submission(mutant[task.name], inputs, context)
        return inputs, run_to_end(outputs) if inspect.isgenerator(outputs) else outputs, context.marks


@repeated("seed", SEEDS)
def test_graphs_that_live_on_are_told_apart_by_their_bytes(seed):
    """One micro-batch at a time, two, all of them: no draw comes near the limits."""
    peaks = {}
    for name in ("mean_of_means", "graph_lives_on", "keeps_every_graph"):
        inputs, _, ((_, peak),) = run_mutant(name, "05.accumulate", seed)
        _, peak_of_one = training_loops.micro_gradients(inputs)
        peaks[name] = peak / peak_of_one
    assert peaks["mean_of_means"] < 0.9 * training_loops.MAX_PEAK
    assert 1.05 * training_loops.MAX_PEAK < peaks["graph_lives_on"] < 0.95 * training_loops.TWO_MICRO_BATCHES
    assert peaks["keeps_every_graph"] > 1.2 * training_loops.TWO_MICRO_BATCHES


@repeated("seed", SEEDS)
def test_chunks_that_autograd_keeps_are_far_over_the_limit(seed):
    for name, is_ok in (("weight_gets_nothing", True), ("logits_kept", False), ("logits_at_once", False)):
        inputs, _, marks = run_mutant(name, "05.chunked", seed)
        peak, *_ = saved_activations.judge_chunked_bytes(inputs, dict(marks))
        assert peak.ok == is_ok and (is_ok or peak.mistakes == (name,))


@repeated("seed", SEEDS)
def test_blocks_that_are_not_recomputed_hold_twice_the_limit(seed):
    inputs, saved, marks = run_mutant("generator_moved", "05.checkpoint", seed)
    usual, saved = saved_activations.run_plain(inputs), saved | dict(marks)
    limit = saved_activations.NUM_BLOCKS * (inputs["x"].nbytes + saved_activations.EXTRA_BYTES)
    assert saved["stored"] < 0.9 * limit < 0.5 * usual["stored"]
    assert saved["peak"] < 0.8 * saved_activations.MAX_PEAK_SHARE * usual["peak"]
    assert torch.equal(saved["output"], usual["output"]) and torch.equal(saved["x"], usual["x"])


def test_judges_in_several_threads_do_not_disturb_each_other():
    """A class is graded so. Torch's generator is one for the whole process."""
    inputs = task_of("05.checkpoint").inputs(1, 1)[0]
    with ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(saved_activations.run_plain, [inputs] * 6))
    for one in runs:
        assert torch.equal(one["output"], runs[0]["output"])
        assert (one["after"], one["calls"]) == (runs[0]["after"], runs[0]["calls"])


def test_a_check_leaves_the_judging_process_as_it_was(ranks):
    torch.manual_seed(3)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    grade("05.checkpoint", lambda function, x, positions: function(x, positions), ranks=ranks)
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "None"), (1.5, "float"), (torch.ones(2), "Tensor(requires_grad=False)"), (nn.Parameter(torch.ones(2)), "")],
)
def test_what_ends_backward_is_named(value, said):
    assert describe_if_detached(value) == said


@repeated("seed", SEEDS)
def test_what_a_batch_holds_with_its_graph_is_far_from_the_limits(seed):
    peaks = {}
    for name in ("left_in_eval", "graph_recorded", "graphs_in_a_list"):
        _, _, ((_, peaks[name]),) = run_mutant(name, "05.evaluate", seed)
    one = peaks["left_in_eval"]
    assert 1.05 * training_loops.MAX_PEAK_WITHOUT_GRAPH * one < peaks["graph_recorded"]
    assert peaks["graph_recorded"] < 0.9 * training_loops.TWO_GRAPHS * one < 0.8 * peaks["graphs_in_a_list"]
