"""The grader, graded: each planted mistake fails with its own hint and no other's, each other right answer passes."""

from __future__ import annotations

from collections import Counter

import pytest

from helpers.grading import Verdict, chapters_with_tasks, exercises_of, lab_of, task_of, tasks_of
from helpers.grading.mistakes import hints_of
from helpers.grading.verdict import mistakes_in_all
from tests.grading.submissions import MUTANTS, RIGHT_ANSWERS, Submission, name_of

MADE_WITH_VIEWS = [  # mistakes of 08.shard
    *["padded_where_even", "shards_differ_in_length", "tail_dropped", "each_tensor_cut", "column_by_column"],
    *["zeros_in_front", "every_other_number", "wrong_place"],
]
# (task, mistake): another mistake of the task that is recognised as well, since one cannot be made without the other or
# both give the same number. The hint that is shown is the first one's, whose place in hints.yaml is above.
ALSO = {
    ("01.all_to_all", "overwrites_send_buffer"): ("wrong_place",),  # what was overwritten is what a wrong place holds
    ("01.broadcast", "root_sends_to_all"): ("ranks_idle",),  # while the root sends, others have nothing to do
    ("01.broadcast", "chain"): ("ranks_idle",),
    ("01.all_reduce", "no_all_gather"): ("one_step_short",),  # on three ranks as many messages
    ("02.replicate", "buffers_shared"): ("weights_shared",),  # what a replica reads is the memory of another one
    ("02.step", "divided_by_devices"): ("mean_of_means",),  # the same number where every device has a piece
    ("03.average", "copy_reduced"): ("some_left_out",),  # where only the first or last gradient is transposed
    ("03.sampler", "tail_dropped"): ("length_rounded_down",),  # a length that is rounded down is given by len, too
    ("03.sampler", "unequal_shares"): ("length_rounded_down",),
    ("03.accumulate", "divided_by_zero"): ("last_micro_batch_only",),  # NaN, where the last micro-batch is empty
    ("03.overlap", "parameter_for_gradient"): ("own_gradient",),  # the gradients may stay as they were
    ("03.overlap", "second_step_silent"): ("works_kept",),  # step 1 is right, and step 2 is not
    ("03.overlap", "grad_not_there"): ("loop_variable",),  # the last parameter may have no gradient
    ("03.overlap", "hooks_added"): ("works_kept",),
    ("03.overlap", "divided_twice"): ("divided_in_flight",),  # before backward ends both have divided once
    ("03.rehearsed", "tags_kept"): ("edges_exchanged", "wrong_rows"),  # on two ranks the rows change places
    ("03.rehearsed", "edges_exchanged"): ("wrong_rows",),  # on two ranks the rows change places
    ("04.overflow", "asks_only_when_found"): ("gradients_sent",),  # messages that do not fit, on one rank or the other
    # Where a single micro-batch has all tokens that count, its mean is the whole loss, and it is the whole batch.
    ("05.accumulate", "padding_skipped"): ("everything_at_once", "mean_of_means"),
    ("05.checkpoint", "never_recomputes"): ("keeps_activations",),  # what is not computed again was kept
    ("05.checkpoint", "reseeded"): ("generator_moved",),  # a seed moves the generator
    ("06.cut", "layers_lost"): ("not_the_best",),  # where the layers happen to suffice, the cut is not the best
    **{("06.cut", way): ("not_the_best",) for way in ("equal_counts", "greedy", "another_goal")},  # ways to miss it
    # Positions or costs, read as numbers of layers, can be 0 or too few.
    ("06.cut", "positions_for_sizes"): ("empty_stage", "layers_lost", "not_the_best"),
    ("06.cut", "costs_for_sizes"): ("empty_stage", "layers_lost", "not_the_best"),
    ("07.row", "gathers_the_input"): ("not_cut",),  # a whole input goes with a whole weight
    ("07.row", "bias_forgotten"): ("bias_on_one_rank",),  # a bias that nobody uses gets no gradient anywhere
    ("08.stage1", "optimizer_made_anew"): ("no_optimizer",),  # the one that __init__ has made updates nothing
    # The view shows where its values happen to be right.
    **{("08.shard", key): ("view_of_the_whole",) for key in MADE_WITH_VIEWS},
    ("08.resume", "shards_differ_in_length"): ("view_of_the_whole",),
    ("08.stage2", "after_backward"): ("gradient_kept",),  # until backward is over every gradient is there
    ("08.stage3", "input_gets_nothing"): ("weight_kept",),  # what autograd goes through keeps the weight
    ("08.stage3", "shard_gets_nothing"): ("weight_kept", "own_gradient"),  # plain code keeps both
    ("09.batch", "only_own_part_checked"): ("rest_let_through",),  # what is not refused is let through
    ("09.sync", "tied_forgotten"): ("partial_forgotten",),  # with 2 or 5 ranks nothing is partial on tp and "ends"
    ("09.norm", "placement_of_the_first"): ("copies_counted_each",),  # the bias, which ZeRO does not shard
    ("09.norm", "stage_by_stage"): ("norm_of_own",),  # with 2 or 5 ranks, if there are several stages, each is one rank
    ("09.norm", "one_copy_only"): (
        "norm_of_own",
    ),  # with 2 or 5 ranks, if there are several replicas, each is one rank
    ("09.norm", "copies_counted_each"): ("sharded_divided",),  # with 2 or 5 ranks there is no stage with several ranks
    ("12.save", "told_too_early"): ("told_before_the_end",),  # before the file has its name it has not been closed
    ("wb.experts", "weights_forgotten"): ("router_gets_nothing",),  # nothing of the output depends on the router
}


def allowed(mutant: Submission) -> set[str]:
    return {mutant.hint, *ALSO.get((mutant.task, mutant.hint), ())}


def is_told(mutant: Submission, verdict: Verdict) -> None:
    assert any(not one.passed for one in verdict.results), verdict.text()
    assert verdict.mistake == mutant.hint, verdict.text()
    others = mistakes_in_all(verdict.results) & hints_of(task_of(mutant.task)).keys() - allowed(mutant)
    assert not others, "hints of other mistakes explain it as well; tell them apart, or say in ALSO why nobody can"


# The first form of each mistake of a task; the other forms are graded with all of them in the slow test below.
FIRST_FORMS = list({(mutant.task, mutant.hint): mutant for mutant in reversed(MUTANTS)}.values())


@pytest.mark.parametrize("mutant", FIRST_FORMS, ids=name_of)
def test_a_mutant_fails_with_its_own_hint(mutant, failing):
    is_told(mutant, failing(mutant, allowed(mutant)))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=name_of)
def test_a_mutant_fails_with_its_own_hint_in_all_worlds_whatever_is_drawn(mutant, seed, graded):
    is_told(mutant, graded(mutant, seed=seed))


def test_a_mutant_is_named_as_its_hint():
    assert not [one.name for one in MUTANTS if one.name != one.hint and not one.name.startswith(one.hint + "_")]


@pytest.mark.parametrize("answer", RIGHT_ANSWERS, ids=name_of)
def test_another_right_answer_passes(answer, passing):
    verdict = passing(answer)
    assert verdict.passed, verdict.text()


@pytest.mark.parametrize("lab", chapters_with_tasks())
def test_every_hint_has_a_mutant_and_every_task_two(lab):
    tasks = tasks_of(lab) | exercises_of(lab)
    mutants = [mutant for mutant in MUTANTS if mutant.task in tasks]
    hints = set(lab_of(lab).hints)
    assert hints == {mutant.hint for mutant in mutants}, "hints without a mutant, or mutants without a hint"
    per_task = Counter(mutant.task for mutant in mutants)
    assert not [key for key in tasks if per_task[key] < 2]


@pytest.mark.parametrize("lab", chapters_with_tasks())
def test_every_task_has_a_right_answer(lab):
    assert not (tasks_of(lab) | exercises_of(lab)).keys() - {answer.task for answer in RIGHT_ANSWERS}


def test_what_is_recognised_as_well_is_a_mistake_of_the_same_task_whose_hint_stands_below():
    for (key, own), others in ALSO.items():
        order = list(hints_of(task_of(key)))
        assert order.index(own) < min(map(order.index, others)), (key, own)
