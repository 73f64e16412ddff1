"""Each rule of thumb is a case with the strategy it leads to; every number is that of the function underneath."""

import re
from dataclasses import replace

import pytest

from helpers.predict.advice.advise import advise
from helpers.predict.advice.fit import USABLE_SHARE, fullest
from helpers.predict.advice.reasons import AS_FAST
from helpers.predict.advice.rules import RULES, largest_layer
from helpers.predict.advice.strategies import strategies
from helpers.predict.memory import memory
from helpers.predict.memory.adapters import lora
from helpers.predict.time.step import Assumptions, estimate_step, tokens_that_hide
from helpers.specs import CLUSTERS, GPUS, LINKS, PRESETS, ModelSpec, Plan
from helpers.specs.clusters import INTRA

FAST, SLOW = "4 nodes of 8 H100, 8 x 400 Gb/s", "8 nodes of 8 A100, 10 Gb/s"
WIDE = ModelSpec(num_layers=2, hidden=14_336, num_heads=112, vocab=50_257, seq=1024)  # two layers of 39 GB each
LONG = replace(PRESETS["gpt2-large"], seq=4096)  # its states fit a T4, its activations only where recomputed
CASES = {  # model, cluster, the rule that applies, the strategies that may come out of it
    "one GPU, fits": ("gpt2", "1 T4", "one GPU, fits", {"one GPU"}),
    "one GPU, fits recomputed": (LONG, "1 T4", "one GPU", {"one GPU"}),
    "one GPU, does not fit": ("gpt2-xl", "1 T4", "one GPU", {"offload"}),
    "one node, fits": ("gpt2-xl", "4 V100", "one node, fits", {"DDP"}),
    "one node, does not fit": ("llama3-8b", "8 H100", "one node", {"ZeRO-1", "ZeRO-2", "ZeRO-3", "PP", "TP"}),
    "one node, not even sharded": ("llama3-70b", "8 H100", "one node", {"offload"}),
    "one node, the largest layer": (WIDE, "4 V100", "largest layer", {"ZeRO-3", "TP"}),
    "many nodes, fits": ("gpt2", SLOW, "many nodes, fits", {"DDP"}),
    "many nodes, fast": ("llama3-8b", FAST, "fast", {"ZeRO-1", "ZeRO-2", "ZeRO-3"}),
    "many nodes, fast, 3D": ("llama3-70b", FAST, "fast", {"TP + PP + DP"}),
    "many nodes, slow": ("llama3-70b", SLOW, "slow", {"TP + PP + DP + ZeRO-1"}),
    "many, many nodes": ("llama3-405b", "128 nodes of 8 H100, 8 x 400 Gb/s", "fast", {"TP + PP + DP + ZeRO-1"}),
}


def ask(model, cluster, **more):
    return advise(model if isinstance(model, ModelSpec) else PRESETS[model], CLUSTERS[cluster], **more)


@pytest.mark.parametrize("case", CASES)
def test_each_rule_leads_to_its_strategy(case):
    model, cluster, rule, expected = CASES[case]
    advice = ask(model, cluster)
    assert advice.rule is RULES[rule] and advice.strategy in expected
    assert advice.sentence.startswith(f"{advice.strategy}: ") and advice.rule.case in advice.sentence
    assert (
        sum(one.is_chosen for one in advice.candidates) == 1 and advice.plan.world_size == CLUSTERS[cluster].world_size
    )


def test_every_rule_has_a_case():
    assert {rule for _, _, rule, _ in CASES.values()} == set(RULES)


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_the_functions_underneath(case):
    advice = ask(*CASES[case][:2])
    work = advice.work
    for one in advice.candidates:
        if one.plan is None:
            assert one.why.startswith("Cannot run") and one.held is None and one.estimate is None
            continue
        stage, held = fullest(work.model, one.plan)
        assert one.stage == stage and one.plan.world_size == work.cluster.world_size
        assert one.held == (replace(held, optimizer=0) if one.name == "offload" else held)
        assert one.host_bytes == (held.optimizer * work.cluster.gpus_per_node if one.name == "offload" else 0)
        assert one.fits == (one.held.total <= USABLE_SHARE * work.cluster.gpu.memory)
        plan_batch = one.plan.dp * one.plan.micro_batch * one.plan.num_microbatches
        assert plan_batch == work.global_batch
        expected = estimate_step(work.model, one.plan, work.cluster, offload=one.name == "offload")
        assert one.estimate == expected and one.why


def test_a_strategy_takes_its_best_plan():
    """No plan of the same strategy that fits is faster by more than the 1 % within which less memory wins."""
    advice = ask("llama3-8b", "8 H100")
    chosen = advice["ZeRO-3"]
    for micro_batch in (1, 2, 4, 8):
        for recompute in ("none", "full"):
            plan = replace(
                chosen.plan, micro_batch=micro_batch, num_microbatches=64 // micro_batch, recompute=recompute
            )
            if fullest(advice.work.model, plan)[1].total <= advice.work.usable:
                assert estimate_step(advice.work.model, plan, advice.work.cluster).seconds >= chosen.seconds / 1.01


def test_the_shortest_step_wins_and_a_tie_changes_less():
    advice = ask("llama3-8b", "8 H100")
    named = [one for one in advice.candidates if one.fits and one.name in advice.rule.tiers[0]]
    fastest = min(one.seconds for one in named)
    assert advice.chosen.seconds <= AS_FAST * fastest
    before = named[: named.index(advice.chosen)]
    assert before and all(one.seconds > AS_FAST * fastest for one in before)
    assert "1.32 times as long: 25.2 s to compute forward again" in advice["ZeRO-1"].why


def test_fast_is_a_matter_of_tokens_not_of_a_name():
    """The network that is slow for one micro-batch is fast for a longer one: F / B tokens a rank."""
    cluster = replace(CLUSTERS[SLOW], inter=LINKS["100 Gb/s"])
    assert tokens_that_hide(cluster) == pytest.approx(0.4 * 312e12 / 12.5e9)
    model = PRESETS["llama3-70b"]
    assert tokens_that_hide(cluster) == pytest.approx(9984) and model.seq == 8192
    assert advise(model, cluster).rule is RULES["fast"]  # two sequences a micro-batch fit: 16,384 tokens
    short = replace(model, seq=2048)
    assert advise(short, cluster, global_batch=64).rule is RULES["slow"]  # one sequence a rank is all there is
    assert tokens_that_hide(cluster, dtype_bytes=4) == 2 * tokens_that_hide(cluster)


def test_the_largest_layer_is_what_a_pipeline_cannot_cut():
    advice = ask(WIDE, "4 V100")
    assert largest_layer(WIDE, Plan()) == 16 * WIDE.params_per_layer > advice.work.usable
    assert "39.5 GB" in advice.because and not advice["PP"].fits
    tables = replace(WIDE, vocab=10**6, num_layers=4, hidden=1024, num_heads=16)
    assert largest_layer(tables, Plan()) == 16 * 10**6 * 1024  # the token table counts as a layer


def test_what_fits_nowhere_says_how_many_gpus_would_be_enough():
    advice = ask("llama3-8b", "1 RTX 4090")
    assert advice.strategy is None and advice.chosen is None and advice.sentence.startswith("Nothing fits.")
    assert advice.remarks[0] == "8 such GPUs would be enough: TP, 21.7 GB a rank."
    wider = replace(CLUSTERS["1 RTX 4090"], gpus_per_node=8)
    assert advise(PRESETS["llama3-8b"], wider)["TP"].fits
    smaller = advise(PRESETS["llama3-8b"], replace(wider, gpus_per_node=4))
    assert not any(one.fits for one in smaller.candidates if one.name != "offload")
    assert "QLoRA of rank 16 would fit on one GPU, 18.0 GB; it trains adapters, not the model." in advice.remarks
    assert "Not even QLoRA" in ask("llama3-405b", "1 T4").text


def test_lora_is_the_honest_remark_of_an_offload():
    advice = ask("gpt2-xl", "1 T4")
    beside = memory(PRESETS["gpt2-xl"], Plan(recompute="full"))
    size = lora(PRESETS["gpt2-xl"], rank=16).total + beside.activations + beside.temporaries
    assert f"{size / 1e9:.2f} GB; it trains adapters" in advice.text
    assert "The host of each node must hold 18.7 GB of optimizer state." in advice.remarks
    assert any(words.startswith("2 such GPUs would be enough without offload") for words in advice.remarks)


def test_tensor_parallelism_takes_the_next_smaller_size_that_divides_the_heads():
    advice = ask("gpt2", "8 A100")
    assert advice["TP"].plan.tp in (2, 4)
    split = advise(replace(PRESETS["gpt2"], num_layers=96, hidden=12_288, num_heads=12), CLUSTERS[FAST])
    assert "TP 8 cannot be (tp=8 does not divide num_heads=12); the next smaller is TP 4." in split.remarks
    odd = ask("gpt2-xl", "4 V100")
    assert odd["TP"].plan is None and odd["TP"].why == "Cannot run: tp=4 does not divide num_heads=25."


def test_a_faster_estimate_than_the_rules_is_said():
    advice = ask("gpt2", SLOW)
    assert "By the estimate TP + PP + DP + ZeRO-1 would save 11 % of a step: measure both." in advice.remarks
    assert any("all-reduce in the open: a larger global batch" in words for words in advice.remarks)


def test_a_batch_too_small_for_every_rank_leaves_the_strategies_that_need_fewer_parts():
    advice = ask("gpt2", "8 H100", global_batch=1)
    assert advice["DDP"].why == "Cannot run: a batch of 1 cannot be shared equally by 8 ranks."
    assert advice.plan.dp == 1 and advice.strategy in ("PP", "TP", "TP + PP + DP")
    words = "With a global batch that is a multiple of 8, data parallelism could use every GPU."
    assert words in advice.remarks and words not in ask("gpt2", "8 H100", global_batch=8).remarks


@pytest.mark.parametrize("gpus", [1, 3, 6, 8])
def test_without_a_batch_every_gpu_gets_its_share_of_512_or_a_little_more(gpus):
    cluster = replace(CLUSTERS["8 H100"], gpus_per_node=gpus)
    work = advise(PRESETS["gpt2"], cluster).work
    assert work.global_batch % gpus == 0 and 512 <= work.global_batch < 512 + gpus


BAD = {
    "a name": (("llama3-8b", CLUSTERS["8 H100"]), {}, "advise takes a ModelSpec and a Cluster"),
    "a GPU": ((PRESETS["gpt2"], GPUS["H100"]), {}, "advise takes a ModelSpec and a Cluster"),
    "no batch": ((PRESETS["gpt2"], CLUSTERS["8 H100"]), {"global_batch": 0}, "global_batch is 0"),
    "half a batch": ((PRESETS["gpt2"], CLUSTERS["8 H100"]), {"global_batch": 1.5}, "global_batch is 1.5"),
    "precision": ((PRESETS["gpt2"], CLUSTERS["8 H100"]), {"precision": "fp8"}, "precision is 'fp8'"),
    "indivisible": (
        (replace(PRESETS["gpt2"], num_layers=1, num_heads=1), CLUSTERS["8 H100"]),
        {"global_batch": 3},
        "take a global_batch that is a multiple of 8",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_sentence(case):
    given, more, words = BAD[case]
    with pytest.raises(ValueError, match=words):
        advise(*given, **more)
    with pytest.raises(KeyError, match="there are DDP, ZeRO-1"):
        ask("gpt2", "8 H100")["FSDP"]


def test_text_table_and_page_say_the_same(tmp_path):
    advice = ask("llama3-70b", FAST)
    text, table = repr(advice), advice._repr_html_()
    page = advice.page(tmp_path / "page.html").read_text(encoding="utf-8")
    for one in advice.candidates:
        assert one.name in text and one.why in text
        assert one.name in table and one.why in table and one.name in page and one.why in page
    assert (
        advice.rule.source.replace('"', "&quot;") in page and "70,553,706,496 parameters x 16 bytes = 1.13 TB" in page
    )
    assert text.count("\n* ") == 1 and page.count('class="chosen"') == 3


def test_the_page_is_self_contained_black_on_white_and_deterministic(tmp_path):
    advice, again = ask("llama3-70b", FAST), ask("llama3-70b", FAST)
    page = advice.page(tmp_path / "one.html").read_bytes()
    assert page == again.page(tmp_path / "two.html").read_bytes()
    text = page.decode()
    assert "size: A4" in text and "color: #000; background: #fff" in text
    assert "http" not in text and "<script" not in text and not re.search(r"20\d\d-\d\d", text)
    assert len(page) < 20_000


def test_one_gpu_has_two_strategies_and_a_cluster_nine():
    assert [one.name for one in strategies(CLUSTERS["1 T4"])] == ["one GPU", "offload"]
    assert len(strategies(CLUSTERS[FAST])) == 9
    assert set(INTRA) == set(GPUS)


def test_assumptions_are_named_and_checked():
    slow = ask("llama3-8b", FAST, assumptions=Assumptions(efficiency=0.2))
    assert slow["ZeRO-3"].estimate.compute == pytest.approx(2 * ask("llama3-8b", FAST)["ZeRO-3"].estimate.compute)
    assert "GPUs reach 20 % of" in slow._repr_html_()
    for wrong in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="efficiency is"):
            Assumptions(efficiency=wrong)
    with pytest.raises(ValueError, match="host_bandwidth"):
        Assumptions(host_bandwidth=-1)
