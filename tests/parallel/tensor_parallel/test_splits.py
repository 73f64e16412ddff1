"""Which part each rank holds, and which modules a plan means: plain data, so no ranks are needed."""

import pytest
import torch
from torch import nn

from helpers.parallel.tensor_parallel.shard import resolve_plan
from helpers.parallel.tensor_parallel.splits import even_split, fused_split, heads_split, padded_split
from helpers.workloads import GPT, MLP, GPTConfig

TENSOR = torch.arange(24.0).view(12, 2)


@pytest.mark.parametrize(
    "split",
    [
        even_split(12, 1),
        even_split(12, 4),
        even_split(12, 3, unit=2),
        fused_split((6, 6), 3),
        fused_split((4, 4, 4), 2, unit=2),
        fused_split((8, 2, 2), 2),
        heads_split(12, 6, 4),
        heads_split(12, 2, 3),
        padded_split(12, 5),
        padded_split(12, 8),  # the last ranks hold nothing but zeros
    ],
)
def test_what_was_taken_joins_to_the_whole(split):
    shards = [split.take(TENSOR, rank) for rank in range(len(split.ranges))]
    assert {shard.shape for shard in shards} == {(split.length, 2)}
    assert torch.equal(split.join(shards), TENSOR)
    assert sum(split.num_entries(rank) for rank in range(len(split.ranges))) == 12 * split.copies


def test_a_cut_by_inputs_takes_columns():
    split = even_split(2, 2, dim=1)
    assert torch.equal(split.take(TENSOR, 1), TENSOR[:, 1:])
    assert torch.equal(split.join([TENSOR[:, :1], TENSOR[:, 1:]]), TENSOR)


def test_a_cut_for_another_size_gets_a_sentence():
    with pytest.raises(ValueError, match=r"split is for 9 entries, but dimension 0 of \(12, 2\) has 12"):
        fused_split((3, 3, 3), 3).take(TENSOR, 0)


def test_a_part_is_no_view_of_the_whole():
    part = even_split(12, 2).take(TENSOR, 0)
    assert part.untyped_storage().nbytes() == TENSOR.nbytes // 2


def test_ranges_of_the_kinds_of_cut():
    assert fused_split((4, 4), 2).ranges == (((0, 2), (4, 6)), ((2, 4), (6, 8)))
    copied = heads_split(8, 4, 4)
    assert copied.ranges == (((0, 4),), ((0, 4),), ((4, 8),), ((4, 8),)) and copied.copies == 2
    assert padded_split(5, 3).ranges == (((0, 2),), ((2, 4),), ((4, 5),))
    assert padded_split(2, 3).ranges == (((0, 1),), ((1, 2),), ((2, 2),))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: even_split(10, 4, what="up"),
            "up has a size of 10, which 4 ranks .* nearest sizes that work are 8 or 12",
        ),
        (lambda: even_split(3, 4), "nearest sizes that work are 4; or take a number of ranks that divides 3"),
        (
            lambda: heads_split(12, 4, 2, what="query"),
            "query has 6 heads of 2, .* numbers of heads that work are 4 or 8",
        ),
        (lambda: heads_split(6, 4, 2), "has 3 heads of 2, which 4 ranks cannot share"),
        (lambda: fused_split((6, 6), 4), "has a size of 6, which 4 ranks cannot share"),
    ],
)
def test_sizes_that_do_not_divide_get_a_sentence_with_the_nearest(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def names(model, plan):
    return {entry.name: entry.word for entry in resolve_plan(model, plan)}


def test_names_with_stars_braces_and_characters():
    gpt = GPT(GPTConfig.tiny())
    found = names(gpt, {"blocks.*.attention.{query,key}": "column"})
    assert list(found) == [f"blocks.{i}.attention.{name}" for i in range(2) for name in ("query", "key")]
    assert list(names(MLP([2] * 13), {"layers.*[02468]": "column"})) == [f"layers.{i}" for i in range(0, 12, 2)]


def test_the_last_entry_for_a_name_counts_and_whole_means_left_alone():
    plan = {"layers.*": "column", "layers.1": "row", "layers.2": "whole"}
    assert names(MLP([2, 2, 2, 2]), plan) == {"layers.0": "column", "layers.1": "row"}


def test_layers_named_in_braces_read_one_input():
    entry = resolve_plan(GPT(GPTConfig.tiny()), {"blocks.0.attention.{query,key}": "column"})[0]
    assert (entry.attribute, entry.together) == ("query", ("query", "key"))
    assert isinstance(entry.parent.query, nn.Linear)


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ({"blocks.*.atention.query": "column"}, r"no such module; the closest are blocks\.\*\.attention\.query"),
        ({"blocks.7.feed_forward.up": "column"}, r"'blocks.7.feed_forward.up', but .* blocks\.\*\.feed_forward\.up"),
        ({"hed": "vocabulary"}, "closest are head"),
        ({"head": "columns"}, "the plan says 'columns' for 'head'; it knows column, row"),
        ({"final_norm": "row"}, "'row' shards a Linear, but final_norm is a LayerNorm"),
        ({"blocks.0.attention.{query,kee}": "column"}, "the plan names 'blocks.0.attention.kee'"),
    ],
)
def test_bad_plans_get_a_sentence(plan, sentence):
    with pytest.raises(ValueError, match=sentence):
        resolve_plan(GPT(GPTConfig.tiny()), plan)
