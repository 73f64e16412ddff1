"""The interview chapter: what its cells call finds planted mistakes, and its lines have the numbers of the texts."""

import re
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from helpers.chapters import interview
from helpers.chapters.myths import zero_1_costs_traffic
from helpers.chapters.myths_simulated import one_f_one_b_has_a_smaller_bubble
from helpers.interview.reference_tables import myths
from helpers.predict.advice import advise
from helpers.predict.failures import lost_share, young_interval
from helpers.ranks import Ranks
from helpers.specs import CLUSTERS, PRESETS, Plan


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4) as pool:
        yield pool


def test_a_few_claims_are_in_view_and_all_others_are_one_click_away():
    names = ["mean-of-means", "busy-is-fast"]
    view = interview.Claims(names)
    assert [one.id for one in view.shown] == names
    assert len(view.shown) + len(view.others) == len(myths())
    html = view._repr_html_()
    assert html.index(f"{len(view.others)} more wrong claims") > html.index(view.shown[1].claim.zh)
    assert view.others[0].claim.en not in repr(view)


def test_the_true_claims_stand_among_the_wrong_ones_and_are_true(ranks):
    names = ["mean-of-means", "zero-1-sends-like-ddp", "one-f-one-b-idles-as-long"]
    view = interview.Claims(names)
    assert [one.id for one in view.shown] == names and len(view.others) == len(myths()) - 1
    sent = zero_1_costs_traffic(ranks)
    assert sent["stage_1"] == pytest.approx(sent["data_parallel"])
    idle = one_f_one_b_has_a_smaller_bubble(ranks)
    assert idle["one_f_one_b_bubble"] == pytest.approx(idle["gpipe_bubble"])


def test_a_claim_whose_run_finds_something_else_is_not_called_refuted(ranks):
    claim = myths()[0]
    right = claim.refute(ranks)
    assert "This wrong claim and 0 others were run on four ranks" in interview.refuted_line([right])
    wrong = type(right)(myth=claim, numbers={name: value + 1 for name, value in right.numbers.items()})
    with pytest.raises(AssertionError, match="the run returns"):
        interview.refuted_line([wrong])


def block_by_block(model, compiler, mesh):
    for block in model.blocks:
        block.compile(backend=compiler)
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def block_by_block_as_a_whole(model, compiler, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return torch.compile(fully_shard(model, mesh=mesh), backend=compiler)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch looks at it while it compiles
@pytest.mark.parametrize(
    ("prepare", "layers"),
    [
        (lambda model, compiler, mesh: torch.compile(model, backend=compiler), [16]),
        (block_by_block, [2]),
        (block_by_block_as_a_whole, [2]),  # the hooks of FSDP2 end the graph, as the chapter says
        (interview.whole_under_ddp, [1, 2, 2, 2, 2, 2, 2, 2, 1]),
    ],
)
def test_what_the_compiler_gets(prepare, layers):
    assert interview.linear_layers_by_graph(prepare) == layers
    assert not dist.is_initialized()


def test_lines_have_the_numbers_of_the_texts():
    counts = interview.gpu_counts([70_000_000_000, 120_000_000_000]).splitlines()
    found = [[int(one) for one in re.findall(r"(\d+) (?:GPUs|with|in)", line)] for line in counts]
    assert found == [[14, 15, 16], [24, 26, 32]]
    lines = interview.post_training_lines(70_000_000_000)
    assert all(number in lines for number in ("36 bytes", "20 bytes", "18 bytes", "2.80 s", "0.35 s", "344 GB"))
    networks = interview.lines_by_network("llama3-70b", ((1, "400 Gb/s"), (8, "400 Gb/s"))).splitlines()
    assert "7,912 tokens" in networks[0] and " 989 tokens" in networks[1]


def test_rank_77_of_256_has_its_tensor_parallel_group_on_one_node():
    plan = Plan(dp=8, tp=8, pp=4, num_microbatches=16, zero=1)
    lines = interview.axis_lines(plan, {"tp": 1e9, "dp": 1e9}, rank=77).splitlines()
    assert lines[0] == "256 GPUs; rank 77 is number 5 on tp, number 1 on dp"
    assert lines[1].endswith("ranks 72, 73, 74, 75, 76, 77, 78, 79 on 1 node")
    assert lines[2].endswith("ranks 69, 77, 85, 93, 101, 109, 117, 125 on 8 nodes")


def test_a_simulation_in_which_rare_checkpoints_lose_nothing_is_found():
    with pytest.raises(AssertionError):
        interview.interval_lines(lambda interval, save, mtbf: save / interval, save=60, gpu_mtbf=50_000 * 3600)


def test_the_shares_that_are_lost_with_other_intervals_are_those_of_the_text():
    mtbf = 50_000 * 3600 / 1024
    best = young_interval(60, mtbf)
    shares = [f"{lost_share(factor * best, 60, mtbf):.1%}" for factor in (1, 1 / 2, 2, 4)]
    assert shares == ["2.6%", "3.3%", "3.3%", "5.6%"]


def test_slow_steps_are_the_same_in_steps_or_in_minutes():
    loop, outside = interview.slow_step_lines().splitlines()
    assert "every 2400 steps = 20 min, then every 2400 steps = 32 min; the same in steps" in loop
    assert outside.endswith("the same in minutes")


def test_a_training_that_ignores_its_batch_has_no_single_answer(ranks):
    with pytest.raises(ValueError, match="too many values"):
        interview.resumed_on_three(ranks, lambda data, state, global_batch: state)


def test_the_older_questions():
    assert interview.ways_on_four_v100s()[0] == "4-bit weights with QLoRA only"
    weights = 2 * interview.LLAMA_65B.num_params  # bytes: more than is usable, and less than the cards report
    assert 4 * 0.94 * interview.V100.reported < weights < 4 * interview.V100.reported
    assert interview.two_wide_layers()[0].strategy == "TP"
    shorter = replace(PRESETS["llama3-8b"], seq=2048)
    assert advise(shorter, CLUSTERS["1 RTX 4090"]).strategy == "offload"
    said, lines = interview.planner_answers({"small": ("llama3-8b", "1 RTX 4090"), "fits": ("gpt2", "1 T4")})
    assert said == {"small": "nothing fits", "fits": "one GPU"} and len(lines.splitlines()) == 2
