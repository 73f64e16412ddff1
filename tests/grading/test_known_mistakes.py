"""Known mistakes of several labs: they can be told apart with any numbers, and a failure is recognised by its text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.grading import grade, task_of
from helpers.grading.kit.messages import recognise_messages as messages
from helpers.grading.pipeline import stage
from helpers.grading.task import RunFailure
from helpers.grading.zero import shards
from tests.grading.known_mistakes import repeated, world_of


def reversed_on_rank_0(rank, num_stages, num_microbatches):
    backwards = range(num_microbatches) if rank else reversed(range(num_microbatches))
    return [f"{rank}F{j}" for j in range(num_microbatches)] + [f"{rank}B{j}" for j in backwards]


def flipped_on_rank_0(tensors, rank, world_size):
    own = shards.shard_of(shards.flatten(tensors), rank, world_size)
    return own.clone() if rank else own.flip(0)


@pytest.mark.parametrize(("key", "function"), [("06.gpipe", reversed_on_rank_0), ("08.shard", flipped_on_rank_0)])
def test_a_mistake_is_named_only_where_it_explains_every_answer(key, function, ranks):
    verdict = grade(key, function, ranks=ranks)
    assert not verdict.passed and verdict.mistake is None
    assert "gpipe(rank=0, " in verdict.text("en") or key != "06.gpipe"


# -- wrong answers that nobody foresees ------------------------------------------------------------------------------
ODD_ANSWERS = [None, 7, "text", [], [None], [[]], (1, 2), {0: 1}, list(range(99))]
ODD_PAIRS = [[None, None], [[1], "text"], [0.5, list(range(99))], [[], []]]
EXPLAINED = {  # a task whose messages say how the right value comes about, and odd answers of its form
    **dict.fromkeys(["06.gpipe", "06.one_f_one_b", "06.under_way", "12.resume", "12.verdict"], ODD_ANSWERS),
    "06.bubble": ODD_PAIRS,
    "12.interval": ODD_ANSWERS,
    "12.reshard": ODD_PAIRS,
    "12.regroup": [[*pair, None] for pair in ODD_PAIRS],
}


@pytest.mark.parametrize("key", EXPLAINED)
@repeated("seed", range(3))
def test_any_wrong_answer_is_told_how_the_right_value_comes_about(key, seed):
    world = world_of(key, 1, seed)
    for odd in EXPLAINED[key]:
        answers = [odd] * len(world.inputs[0]["cases"])
        judged = list(task_of(key).judge(replace(world, outputs=[answers])))
        wrong = [one.message for one in judged if not one.ok]
        assert wrong
        for message in wrong:
            for text in (message.en, message.zh):
                assert len(text.split("\n")) == 2 and text.endswith((".", "。")), text


# -- failures --------------------------------------------------------------------------------------------------------
pipeline, unpadded = stage.recognise_stage, shards.is_padding_error
column, row = task_of("07.column").recognise_failure, task_of("07.row").recognise_failure
ALL_WAIT = "every rank waits for another one\n"
PRODUCT = "mat1 and mat2 shapes cannot be multiplied "
FAILURES = [
    (messages, "hang", f"{ALL_WAIT}ranks 0, 1 wait in send, cell line 3", ["sends_first"]),
    (messages, "hang", f"{ALL_WAIT}ranks 0, 1 wait in recv, cell line 3", ["receives_first"]),
    (messages, "hang", f"{ALL_WAIT}rank 0 waits in recv\nrank 1 waits in send", ["unmatched"]),
    (messages, "hang", "rank 1 finished without calling what others wait for\nrank 0 waits in send", ["unmatched"]),
    (messages, "mismatch", "rank 1 sends float64 x 8, rank 2 expects float64 x 7", ["sizes_differ", "buffer_size"]),
    (messages, "exception", "ValueError: rank 0 cannot send to or from itself", ["sends_to_itself"]),
    (messages, "exception", "rank 0 raised KeyError: 3", []),
    (pipeline, "hang", f"{ALL_WAIT}  rank 0 waits in send, a\n  rank 1 waits in send, b", ["sends_block"]),
    (pipeline, "hang", f"{ALL_WAIT}  rank 0 waits in send, a\n  rank 1 waits in recv, b", ["sends_block"]),
    (
        stage.recognise_stage,
        "hang",
        f"{ALL_WAIT}  rank 0 waits in send and recv, a\n  rank 1 waits in recv",
        ["nobody_sends"],
    ),
    (pipeline, "hang", f"{ALL_WAIT}  rank 0 waits in all_reduce, a", []),
    (column, "exception", f"{PRODUCT}(6x5 and 3x12)", ["cut_across"]),
    (row, "exception", f"{PRODUCT}(6x5 and 10x2)", ["cut_across"]),
    (row, "exception", f"{PRODUCT}(6x3 and 5x4)", ["input_cut_again"]),
    (
        shards.is_padding_error,
        "mismatch",
        "rank 0 calls all_gather float64 (51,), rank 1 calls all_gather float64 (50,)",
        True,
    ),
    (unpadded, "exception", "Check failed: outputs[0].sizes() in `dist.reduce_scatter(own, parts)`", True),
    (
        shards.is_padding_error,
        "exception",
        "NameError: name 'own' is not defined in `dist.reduce_scatter(own, parts)`",
        False,
    ),
    (unpadded, "exception", "shape '[3, 4]' is invalid for input of size 13", False),
    (unpadded, "hang", "rank 0 waits in reduce_scatter", False),
]


@pytest.mark.parametrize(("recognise", "kind", "text", "known"), FAILURES)
def test_a_failure_is_recognised_by_its_text(recognise, kind, text, known):
    found = recognise(RunFailure(kind=kind, text=text))
    assert (found if isinstance(found, bool) else list(found)) == known
