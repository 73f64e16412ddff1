"""The planner: what it finds fits, is preferred to what it leaves out, warns, and says so everywhere."""

import json
import re
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import pytest

from helpers.learner.words import use_language
from helpers.learner.words.wrapping import width
from helpers.predict.advice import advise
from helpers.predict.advice.choice import LAYOUT_TIE, ranked
from helpers.predict.advice.fit import USABLE_SHARE, fullest_stage
from helpers.predict.advice.plans import PlanRequest
from helpers.predict.advice.ranking import MOST_TOKENS, reasons, with_warnings
from helpers.predict.advice.rules import RULES, largest_layer
from helpers.predict.advice.search import (
    axis_layouts,
    context_method,
    estimate,
    last_stage_layers,
    layout_key,
    micro_batches,
    reason_against,
    sharded_plans,
)
from helpers.predict.advice.summary import MARKS, bar_rows, legend, marks
from helpers.predict.memory import logits, memory
from helpers.predict.memory.fine_tuning import lora
from helpers.predict.time.convolutions import RESNET_152, resnet_step
from helpers.predict.time.offload_and_adapters import offloaded_step
from helpers.predict.time.stacks import MEGATRON_CORE, MEGATRON_CORE_NO_OVERLAP, STACKS
from helpers.predict.time.step import UNCALIBRATED, step_time
from helpers.specs import CLUSTERS, GPUS, LINKS, PRESETS, ROUTED, Cluster, ModelSpec, Plan
from helpers.specs.hardware import INTRA, PCIE_3

FAST, SLOW = "4 nodes of 8 H100, 8 x 400 Gb/s", "8 nodes of 8 A100, 10 Gb/s"
WIDE = ModelSpec(num_layers=2, hidden=14_336, num_heads=112, vocab=50_257, seq=1024)  # two layers of 39 GB each
LONG = replace(PRESETS["gpt2-large"], seq=4096)  # its states fit a T4, its activations only where recomputed
CASES = {  # model, cluster, the rule that applies, the strategies that may come out
    "one GPU, fits": ("gpt2", "1 T4", "one GPU, fits", {"one GPU"}),
    "one GPU, fits recomputed": (LONG, "1 T4", "one GPU", {"one GPU"}),
    "one GPU, does not fit": ("gpt2-xl", "1 T4", "one GPU", {"offload"}),
    "one node, fits": ("gpt2", "4 V100", "one node, fits", {"DDP"}),
    "one node, does not fit": ("llama3-8b", "8 H100", "one node", {"ZeRO-3"}),
    "one node, not even sharded": ("llama3-70b", "8 H100", "one node", {"offload", None}),
    "one node, the largest layer": (WIDE, "4 V100", "largest layer", {"ZeRO-3", "TP", "TP + DP + ZeRO"}),
    "many nodes, fits": ("gpt2", SLOW, "many nodes, fits", {"DDP", "ZeRO-1"}),
    "many nodes, fast": ("llama3-8b", FAST, "fast", {"ZeRO-1", "ZeRO-2", "ZeRO-3"}),
    "many nodes, fast, 3D": ("llama3-70b", FAST, "fast", {"TP + PP + DP"}),
    "many nodes, slow": ("llama3-70b", SLOW, "slow", {"TP + PP + DP", "TP + PP + DP + ZeRO-1", "PP + DP + ZeRO-1"}),
}
FOUND = {}


def ask(model, cluster, **more):
    key = model, cluster, *more.items()
    if key not in FOUND:
        model = model if isinstance(model, ModelSpec) else PRESETS[model]
        FOUND[key] = advise(model, CLUSTERS[cluster], **more)
    return FOUND[key]


@pytest.mark.parametrize("case", CASES)
def test_each_case_has_its_rule_and_a_plan_beside_it(case):
    model, cluster, rule, expected = CASES[case]
    advice = ask(model, cluster)
    assert advice.rule is RULES[rule] and advice.strategy in expected and advice.rule.case in advice.sentence
    assert sum(one.is_chosen for one in advice.candidates) == len(advice.best[:1])
    assert advice.chosen is None or advice.plan.world_size == CLUSTERS[cluster].world_size


@pytest.mark.parametrize("case", ["one node, does not fit", "many nodes, fast, 3D", "one GPU, does not fit"])
def test_numbers_are_those_of_the_functions_underneath(case):
    advice = ask(*CASES[case][:2])
    work = advice.request
    for one in (*advice.best, *(one for one in advice.candidates if one.fits)):
        held, is_offload = fullest_stage(work.model, one.plan)[1], one.name == "offload"
        assert one.plan.global_batch == work.global_batch and one.memory.total <= USABLE_SHARE * work.cluster.gpu.memory
        assert one.host_bytes == (held.optimizer + held.gradients if is_offload else 0) or work.cluster.world_size > 1
        assert is_offload or one.memory == held
        step = (offloaded_step if is_offload else step_time)(work.model, one.plan, work.cluster, work.stack)
        assert one.step == replace(step, factor=UNCALIBRATED)
        assert one.tokens_per_second == pytest.approx(work.tokens / step.seconds)
    for one in advice.candidates:
        assert one.why and (one.fits or one.why.startswith(("Cannot run", "Does not fit")))


def all_fitting_plans(work):
    """Of each row the first plan that fits, with the memory of its fullest stage: what the search could time."""
    layouts = [layout for sharded in sharded_plans(work) for layout in sharded]
    rows = [
        row.plans(layout.zero, ["none", "full"])
        for layout in layouts
        for of_size in micro_batches(work, layout)
        for row in of_size.rows
    ]
    for row in rows:
        held = ((plan, *fullest_stage(work.model, plan)) for plan in row)
        yield from islice((one for one in held if one[2].total <= work.usable), 1)


def test_no_plan_that_fits_is_preferred_to_the_first():
    """The pruned search against all plans of a small cluster, timed one by one."""
    half = replace(CLUSTERS["8 H100"], gpus_per_node=4)
    advice = advise(replace(PRESETS["llama3-8b"], seq=2048), half, global_batch=32)
    work = advice.request
    steps = [(*one, step_time(work.model, one[0], work.cluster, work.stack)) for one in all_fitting_plans(work)]
    everything = with_warnings(work, [estimate(work, *one) for one in steps])
    in_order = ranked(work, everything)
    assert len(everything) > 100 and in_order[0].plan == advice.plan
    assert {one.plan for one in in_order if one.is_tied} >= {one.plan for one in advice.best if one.is_tied}


def test_best_plans_differ_in_layout_and_those_that_cannot_be_told_apart_come_first():
    advice = ask("llama3-70b", FAST)
    assert len(advice.best) == 10 == len({layout_key(one.plan) for one in advice.best}) and advice.searched > 1000
    tied, others = advice.best[: advice.num_tied], advice.best[advice.num_tied :]
    limit = (1 + LAYOUT_TIE) * advice.tied_seconds[0]
    assert tied and others and all(one.is_tied and one.seconds <= limit for one in tied)
    assert [one.seconds for one in others] == sorted(one.seconds for one in others) and others[0].seconds > limit
    low, high = (f"{seconds / 60:.2f} min" for seconds in advice.tied_seconds)
    assert f"= Plans 1 to {len(tied)}, {low} to {high}, cannot be told apart" in " ".join(advice.text.split())
    assert advice.simplest.name == "ZeRO-3" and advice.simplest.seconds > advice.chosen.seconds


WARNED = {  # what must be said of the first plan, if it is so
    "bubble": ("gpt2-xl", "8 H100", dict(global_batch=8), lambda one: one.bubble > 0.15, "The pipeline is idle"),
    "few": ("llama3-405b", "128 nodes of 8 H100, 8 x 400 Gb/s", dict(global_batch=256),
            lambda one: one.plan.num_microbatches < 4 * one.plan.pp > 4, "are few"),
    "tokens": ("llama3-8b", FAST, dict(global_batch=16_384), lambda one: True, "million tokens is beyond"),
    "sums": ("llama3-70b", FAST, dict(precision="mixed"), lambda one: one.plan.num_microbatches > 32, "lated in bf16"),
    "bf16": ("gpt2", "4 V100", {}, lambda one: True, "no bf16 units: train in fp16"),
}  # fmt: skip


@pytest.mark.parametrize("case", WARNED)
def test_nothing_that_an_engineer_would_object_to_comes_first_without_a_sentence(case):
    model, cluster, more, applies, words = WARNED[case]
    advice = ask(model, cluster, **more)
    for one in advice.best:
        assert applies(one) == any(words in warning for warning in one.warnings.values())
    assert not applies(advice.chosen) or words in advice.sentence
    assert case != "tokens" or advice.request.tokens > MOST_TOKENS


def test_a_plan_without_warnings_wins_a_near_tie():
    advice = ask("llama3-70b", FAST)
    clean = [one for one in advice.best if not one.warnings]
    assert clean and not advice.chosen.warnings and advice.plan.precision == "mixed_fp32_grads"


def test_the_largest_layer_is_what_a_pipeline_cannot_cut():
    advice = ask(WIDE, "4 V100")
    assert largest_layer(WIDE, Plan()) == 16 * WIDE.params_per_layer > advice.request.usable
    assert "39.5 GB" in advice.rule_reason and not advice["PP"].fits


def test_what_fits_nowhere_says_what_is_missing_and_how_many_gpus_would_be_enough():
    advice = ask("llama3-8b", "1 RTX 4090")
    assert advice.strategy is None and advice.chosen is None and advice.sentence.startswith("Nothing fits.")
    least = advice["one GPU"].memory.total - advice.request.usable
    assert f"{least / 1e9:.0f} GB are missing" in advice.sentence
    assert any(words.startswith("8 such GPUs would be enough") for words in advice.remarks)
    assert "QLoRA of rank 16 would fit on one GPU, 18.0 GB; it trains adapters, not the model." in advice.remarks
    assert "Not even QLoRA" in ask("llama3-405b", "1 T4").text


def test_offload_names_the_hosts_bytes_and_the_adapters_that_would_do():
    advice = ask("gpt2-xl", "1 T4")
    beside = memory(PRESETS["gpt2-xl"], Plan(recompute="full"))
    size = lora(PRESETS["gpt2-xl"], rank=16).total + beside.activations + beside.temporaries
    text = " ".join(advice.text.split())
    assert f"{size / 1e9:.2f} GB; it trains adapters" in text
    host = 14 * PRESETS["gpt2-xl"].num_params
    assert advice.chosen.host_bytes == host and f"must hold {host / 1e9:.1f} GB" in text
    count, fp32 = advice.plan.num_microbatches, 16 * PRESETS["gpt2-xl"].num_params
    assert f"gradients of {count} micro-batches in bf16; with fp32 accumulation it holds {fp32 / 1e9:.1f} GB" in text


def test_a_tight_first_plan_says_at_once_what_fits_without_warnings_and_what_all_share():
    advice = advise(PRESETS["llama3-70b"], replace(CLUSTERS[FAST], num_nodes=2))
    assert advice.chosen.warnings.keys() == {"sums", "full"}
    head, legend_ = " ".join(advice.text.split()).split("Marks:")
    assert 0 < head.index("With an 8-bit optimizer") < head.index("layout") and advice.alternative in head
    assert "fp32 gradients" in advice.alternative and "68.0 GB per rank" in advice.alternative
    assert legend_.count("fragmentation") == legend_.count("accumulated in bf16") == 1 and "fragmentation" not in head
    assert all("bf16 accumulation" in one.plan_text for one in advice.best)
    assert not ask("llama3-8b", "8 H100").alternative


def test_each_mark_of_the_table_is_explained_once():
    many = replace(CLUSTERS["128 nodes of 8 H100, 8 x 400 Gb/s"], num_nodes=2048)
    advice = advise(PRESETS["llama3-405b"], many, global_batch=2048)
    few = [one for one in advice.best if "are few" in one.warnings.get("few", "")]
    chunked = [one for one in few if one.plan.num_chunks > 1]
    assert chunked
    for one in chunked:
        bubble = f"{one.plan.num_chunks} chunks per stage keep the bubble at {100 * one.bubble:.0f} %"
        assert bubble in one.warnings["few"]
    explained = [mark for mark, _ in legend(advice)]
    assert len(explained) == len(set(explained)) and len(set(MARKS.values())) == len(MARKS)
    shown = {mark for one in advice.best for mark in marks(advice, one)}
    assert shown - {"=", " "} <= {*explained} <= shown | {"T"}
    few = advise(PRESETS["llama3-70b"], replace(many, num_nodes=4), global_batch=256)
    recomputing = {place for place, one in enumerate(few.best) if one.plan.recompute != "none"}
    assert recomputing == {place for place, one in enumerate(few.best) if "r" in marks(few, one)} != set()
    assert "recompute full, would take" in " ".join(few.text.split())  # of the simplest plan that fits
    text = " ".join(advice.text.split())
    assert all(text.count(sentence) == 1 for _, sentence in legend(advice))


def test_a_micro_batch_of_two_that_plain_torch_could_not_hold_makes_no_warning():
    work = advise(PRESETS["gpt2"], CLUSTERS["8 H100"]).request
    plan = Plan(dp=8, num_microbatches=64)
    one, two = (replace(plan, micro_batch=size, num_microbatches=64 // size) for size in (1, 2))
    steps = [(each, *fullest_stage(work.model, each)) for each in (one, two)]
    timed = [estimate(work, *step, step_time(work.model, step[0], work.cluster, work.stack)) for step in steps]
    assert "Micro-batches of two fit" in with_warnings(work, timed)[0].warnings["micro"]
    held = timed[1].memory
    full = replace(timed[1], memory=replace(held, activations=held.activations + round(work.usable) - held.total))
    assert "micro" not in with_warnings(work, [timed[0], full])[0].warnings


def test_what_zero_3_hides_is_said_only_of_a_zero_3_that_hides_it():
    for name in ("llama3-8b", "llama3-70b", "llama3-405b"):
        advice = ask(name, FAST)
        assert ("Under ZeRO-3" in advice.sentence) == (advice.strategy == "ZeRO-3" and advice.chosen.traffic < 0.1)


def test_plain_torchs_loss_is_warned_of_where_it_does_not_fit():
    advice = ask("gpt2", "4 V100")
    for one in advice.best:
        plain = one.memory.total + logits(PRESETS["gpt2"], one.plan) * (one.plan.tp == 1)
        assert ("12 bytes per logit" in one.warnings.get("loss", "")) == (plain > advice.request.usable)
    assert advice.plan.micro_batch < 32 and "This V100 (one of 32.0 GB)" in advice.sentence


def test_adapters_take_four_bits_where_sixteen_do_not_fit():
    big = advise(PRESETS["llama3-70b"], CLUSTERS["1 RTX 4090"], lora=16)
    assert big.chosen is None and "Nothing fits" in big.sentence
    one = replace(CLUSTERS["8 A100"], gpus_per_node=1)
    found = advise(PRESETS["llama3-70b"], one, global_batch=16, seq=4096, lora=16)
    assert found.strategy == "QLoRA" and not found["LoRA"].fits and found["LoRA"].memory.total > 141e9
    small = advise(PRESETS["llama2-7b"], one, global_batch=16, lora=16)
    full = step_time(PRESETS["llama2-7b"], small.plan, one, small.request.stack).seconds
    assert small.strategy == "LoRA" and 0.6 * full < small.chosen.seconds < 0.85 * full  # a third of products, less


def test_images_take_ddp_and_their_own_model_of_time():
    cluster = replace(CLUSTERS["8 A100"], num_nodes=2, inter=LINKS["100 Gb/s"])
    found = advise(RESNET_152, cluster, global_batch=1024)
    assert found.strategy == "DDP" and found.plan.micro_batch == 64 and "learning rate" in found.text
    step = resnet_step(RESNET_152, 64, cluster, data_hidden=found.request.stack.data_hidden)
    assert found.chosen.step.bars == step.bars
    assert advise(RESNET_152, cluster, global_batch=16 * 4096).plan.num_microbatches > 1  # 4,096 at once do not fit


def test_a_link_has_its_own_name_in_reasons():
    slow = advise(PRESETS["gpt2"], replace(CLUSTERS["4 V100"], intra=PCIE_3))
    assert "PCIe 3 x16" in slow["TP"].why and "NVLink" not in slow.text and set(INTRA) == set(GPUS)


def test_tensor_parallelism_takes_the_next_smaller_size_that_divides_the_heads():
    split = advise(replace(PRESETS["gpt2"], num_layers=48, hidden=12_288, num_heads=12), CLUSTERS[FAST])
    assert "TP 8 cannot be (tp=8 does not divide num_heads=12); the next smaller is TP 4." in split.remarks
    odd = ask("gpt2-xl", "4 V100")
    assert odd["TP"].plan is None and odd["TP"].why == "Cannot run: tp=4 does not divide num_heads=25."


def test_a_batch_too_small_for_every_rank_leaves_the_strategies_that_need_fewer_parts():
    advice = ask("gpt2", "8 H100", global_batch=1)
    assert advice["DDP"].why == "Cannot run: a batch of 1 cannot be shared equally by 8 ranks."
    assert advice.plan.dp == 1
    words = "With a global batch that is a multiple of 8, data parallelism could use every GPU."
    assert words in advice.remarks and words not in ask("gpt2", "8 H100", global_batch=8).remarks
    halves = ask("gpt2", "8 H100", global_batch=4)
    assert (words in halves.remarks) == (halves.plan.dp == 1)


@pytest.mark.parametrize("gpus", [1, 3, 7, 8])
def test_without_a_batch_every_gpu_gets_its_share_of_512_or_a_little_more(gpus):
    work = advise(PRESETS["gpt2"], replace(CLUSTERS["8 H100"], gpus_per_node=gpus)).request
    assert work.global_batch % gpus == 0 and 512 <= work.global_batch < 512 + gpus


BAD = {
    "a name": (("llama3-8b", CLUSTERS["8 H100"]), {}, "advise takes a ModelSpec and a Cluster"),
    "a GPU": ((PRESETS["gpt2"], GPUS["H100"]), {}, "advise takes a ModelSpec and a Cluster"),
    "no batch": ((PRESETS["gpt2"], CLUSTERS["8 H100"]), {"global_batch": 0}, "global_batch is 0"),
    "half a batch": ((PRESETS["gpt2"], CLUSTERS["8 H100"]), {"global_batch": 1.5}, "global_batch is 1.5"),
    "precision": ((PRESETS["gpt2"], CLUSTERS["8 H100"]), {"precision": "fp8"}, "precision is 'fp8'"),
    "fp32": ((PRESETS["gpt2"], CLUSTERS["8 H100"]), {"precision": "fp32"}, "has no rate in the model of time"),
    "indivisible": (
        (replace(PRESETS["gpt2"], num_layers=1, num_heads=1), CLUSTERS["8 H100"]),
        {"global_batch": 3},
        "global_batch=. that is a multiple of 8",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_sentence(case):
    given, more, words = BAD[case]
    with pytest.raises(ValueError, match=words):
        advise(*given, **more)
    with pytest.raises(ValueError, match="has plans 1 to"):
        ask("gpt2", "8 H100", global_batch=8).explain(0)
    with pytest.raises(KeyError, match="there are DDP, ZeRO-1"):
        ask("gpt2", "8 H100", global_batch=8)["FSDP"]


def test_text_table_page_and_json_say_the_same(tmp_path):
    advice = ask("llama3-70b", FAST)
    text, table = repr(advice), advice._repr_html_()
    page = advice.page(tmp_path / "page.html").read_text(encoding="utf-8")
    told = json.loads(json.dumps(advice.as_json()))
    assert [one["seconds"] for one in told["best"]] == [one.seconds for one in advice.best]
    for one in advice.candidates:
        for shown in (table.replace("&#x27;", "'"), page.replace("&#x27;", "'")):
            assert one.title in shown and one.why in shown
    for place, one in enumerate(advice.best, 1):
        assert one.plan_text in table and one.plan_text in page and marks(advice, one) in page
        layout, end = re.escape(one.layout_text), re.escape(marks(advice, one).rstrip())
        assert re.search(rf"^ ?{place}  {layout} .*{end}$", text, re.M)
        assert advice.explain(place).startswith(f"Plan {place}: ")
        assert one.trainer_refusal(advice.request.model) == told["best"][place - 1]["trainer_refusal"]
    assert max(map(width, text.split("\n"))) <= 80 and max(map(width, advice.explain(2).split("\n"))) <= 80
    for sentence in (advice.tie, *advice.chosen.reasons, *(sentence for _, sentence in legend(advice))):
        for shown in (" ".join(text.split()), table.replace("&#x27;", "'"), page.replace("&#x27;", "'")):
            assert sentence in shown
    assert page.count('class="chosen"') == 4 and "70,553,706,496 parameters" in page
    assert page == ask("llama3-70b", FAST).page(tmp_path / "two.html").read_text(encoding="utf-8")
    assert "size: A4" in page and "http" not in page and "<script" not in page
    assert not re.search(r"20\d\d-\d\d", page) and len(page) < 30_000


def test_experts_are_spread_where_they_fit_and_the_page_says_how_many(tmp_path):
    """Mixtral's 46.7 billion parameters: two nodes hold them, and their adapters are not modelled."""
    model, cluster = ROUTED["mixtral-8x7b"], replace(CLUSTERS[FAST], num_nodes=2)
    found = advise(model, cluster, seq=4096)
    assert found.plan.ep > 1 and f"EP {found.plan.ep}" in found.sentence and found.chosen.mfu > 0.4
    assert max(map(width, found.text.split("\n"))) <= 80
    assert {one.plan.cp for one in advise(replace(model, window=4096), cluster).best} == {1}
    assert ">8, 2<" in found.page(tmp_path / "experts.html").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="LoRA: num_experts=8 is not modelled here"):
        advise(model, cluster, lora=8)


def test_deepseek_v3_gets_a_pipeline_although_its_61_layers_are_prime():
    """15 stages of 4 layers and a last one of 1. A model whose layers divide evenly has no such stage."""
    h800 = Cluster(
        gpu=GPUS["H800"], gpus_per_node=8, num_nodes=256, intra=LINKS["NVLink 4, H800"], inter=LINKS["400 Gb/s"],
        network_cards=8,
    )  # fmt: skip
    found = advise(ROUTED["deepseek-v3"], h800, global_batch=15_360)
    assert any((one.plan.pp, one.plan.last_stage_layers) == (16, 1) and one.plan.ep > 1 for one in found.best)
    assert (last_stage_layers(61, 16), last_stage_layers(61, 3), last_stage_layers(61, 61)) == (1, None, None)
    assert last_stage_layers(60, 16) is last_stage_layers(61, 40) is None


@pytest.mark.parametrize("name", ROUTED)
def test_models_with_experts_have_plans_by_their_names(name):
    found = advise(ROUTED[name], replace(CLUSTERS[FAST], num_nodes=64), global_batch=512, seq=4096)
    assert found.chosen is not None and found.chosen.mfu > 0.1


@pytest.mark.parametrize(
    "language, inside, between", [("en", ", in a node", ", between nodes"), ("zh", "，节点内", "，节点间")]
)
def test_context_parallelism_has_a_row_of_its_own_with_its_bottleneck(language, inside, between):
    """Not under tensor parallelism, where it stood: 8 ranks of cp in a node, or 32 over four nodes."""
    name = {"en": "context parallelism", "zh": "上下文并行"}[language]
    model, cluster = replace(PRESETS["llama3-8b"], seq=131_072), CLUSTERS[FAST]
    for plan, where, link in ((Plan(cp=8, dp=4), inside, "NVLink 4"), (Plan(cp=32), between, "network")):
        step = step_time(model, replace(plan, cp_method="all_to_all"), cluster, MEGATRON_CORE)
        candidate = SimpleNamespace(step=step, seconds=step.seconds)
        advice = SimpleNamespace(request=SimpleNamespace(cluster=cluster))
        with use_language(language):
            rows = {row["term"]: row["binds"] for row in bar_rows(advice, candidate)}
        assert rows[name + where] == (link if language == "en" or link != "network" else "网络")
        assert not any(term.startswith(("tensor parallelism", "张量并行")) for term in rows)


@pytest.mark.parametrize("name, method", [("Megatron-Core", "ring"), ("TorchTitan", "all_gather")])
def test_context_parallelism_exchanges_as_the_stack_does(name, method):
    request = PlanRequest(model=PRESETS["llama3-8b"], cluster=CLUSTERS[FAST], global_batch=32, stack=STACKS[name])
    layouts = list(axis_layouts(request))
    assert {plan.cp_method for plan in layouts if plan.cp > 1} == {method}
    assert {plan.cp_method for plan in layouts if plan.cp == 1} == {Plan().cp_method}


def test_an_all_to_all_needs_a_head_for_each_rank_and_says_so():
    """gpt2 has 12 heads, of which 8 ranks cannot get equally many."""
    model = replace(PRESETS["gpt2"], seq=4096)
    request = PlanRequest(model=model, cluster=CLUSTERS[FAST], global_batch=32, stack=MEGATRON_CORE_NO_OVERLAP)
    assert reason_against(request, Plan(cp=8, dp=4)) == ""
    refused = reason_against(request, Plan(cp=8, dp=4, cp_method="all_to_all"))
    assert "tp * cp=8" in refused and "num_heads=12" in refused
    assert context_method(request, 1, 8) == "all_to_all"  # the only one of this stack
    both = replace(request, stack=replace(request.stack, cp_choices=("ring",)))
    assert (context_method(both, 1, 8), context_method(both, 1, 4)) == ("ring", "all_to_all")
    assert context_method(both, 8, 1) == Plan().cp_method


def test_the_method_of_context_parallelism_is_ulysses_where_a_ring_waits_and_the_heads_allow_it():
    """32 heads, and as many of keys and values: over 10 Gb/s a ring of 4 sends twice what Ulysses does."""
    model = replace(PRESETS["llama2-7b"], seq=131_072)
    request = PlanRequest(model=model, cluster=CLUSTERS[SLOW], global_batch=64)
    assert (context_method(request, 8, 4), context_method(request, 8, 8)) == ("all_to_all", "ring")
    assert context_method(replace(request, cluster=CLUSTERS[FAST]), 8, 4) == "ring"  # not enough faster to tell
    found = {}
    for cp, method in ((4, "all_to_all"), (8, "ring")):
        plan = Plan(tp=8, cp=cp, dp=8 // cp, cp_method=method, sequence_parallel=True, zero=1)
        step = step_time(model, plan, CLUSTERS[SLOW], MEGATRON_CORE)
        candidate = estimate(request, plan, 0, memory(model, plan), step)
        found[cp] = candidate.plan_text, reasons(request, candidate, candidate, [])[-1]
    text, reason = found[4]
    assert "CP by Ulysses (all-to-all)" in text and "by ring attention a layer would take 177 % more." in reason
    text, reason = found[8]
    assert "CP by" not in text and reason.startswith("CP exchanges by ring attention; Ulysses (all-to-all) cannot, be")
    assert "tp * cp=64 does not divide num_heads=32" in reason
