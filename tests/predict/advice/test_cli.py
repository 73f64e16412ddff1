"""The command `python -m helpers plan`: what it prints, and a sentence for every option with a bad value."""

import json
import re
import shlex
from pathlib import Path

import pytest

from helpers.learner.words.wrapping import width
from helpers.predict.advice import cli

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "train_and_plan.md"


def told(capsys, *options):
    code = cli.main([*options])
    return code, capsys.readouterr()


def test_the_command_prints_plans_criticism_json_and_a_page(capsys, tmp_path):
    small = ("--model", "gpt2", "--gpus", "8", "--batch", "64")
    code, (out, _) = told(capsys, *small, "--page", str(tmp_path / "plan.html"))
    assert code == 0 and out.startswith("Plan 1: DP 8") and "<table>" in (tmp_path / "plan.html").read_text("utf-8")
    code, (out, _) = told(capsys, *small, "--json")
    assert code == 0 and json.loads(out)["best"][0]["plan"]["dp"] == 8
    code, (out, _) = told(capsys, *small, "--mine", "tp=2")
    assert code == 0 and out.startswith("Your plan: TP 2 x DP 4")
    code, (out, _) = told(capsys, *small, "--lang", "zh")
    assert code == 0 and "一步" in out
    code, (out, _) = told(capsys, "--model", "ResNet152", "--gpus", "16", "--gpu", "a100", "--batch", "1024")
    assert code == 0 and "images per second" in out


def example(text: str) -> list[str]:
    """The arguments of the command `plan` in the guide."""
    return shlex.split(re.search(r"python -m helpers plan (--model .*)", text)[1])


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_guides_example_is_read_in_a_glance(capsys, lang):
    guide = GUIDE.read_text("utf-8")
    assert "ten fastest" not in guide  # the order is another one
    code, (out, _) = told(capsys, *example(guide), "--lang", lang)
    lines = out.rstrip("\n").split("\n")
    assert code == 0 and len(lines) <= 45 and max(map(width, lines)) <= 80
    assert sum(bool(re.match(r" ?\d+  TP", line)) for line in lines) == 10  # the rows of the table
    assert "--row 2" in lines[-1]


def test_a_row_is_explained_in_full(capsys):
    small = ("--model", "gpt2", "--gpus", "8", "--batch", "64")
    plan = json.loads(told(capsys, *small, "--json")[1].out)["best"][1]
    code, (out, _) = told(capsys, *small, "--row", "2")
    assert code == 0 and out.startswith("Plan 2: ") and all(bar["binds"] for bar in plan["bars"])
    assert max(map(width, out.split("\n"))) <= 80 and "Trainer" in out
    assert json.loads(told(capsys, *small, "--row", "2", "--json")[1].out)["plan"] == plan["plan"]


def test_where_nothing_fits_a_row_gets_the_reasons_of_all_strategies(capsys):
    code, (out, _) = told(capsys, "--model", "llama3-405b", "--gpus", "1", "--gpu", "T4", "--row", "2")
    assert code == 0 and out.startswith("Nothing fits.") and "- one GPU: Does not fit:" in out
    assert max(map(width, out.split("\n"))) <= 80


def test_adapters_are_timed_on_a_plain_stack_unless_another_is_named(capsys):
    lora = ("--model", "gpt2", "--gpus", "1", "--batch", "64", "--lora", "16")
    stacks = ("", "FSDP", "Megatron-Core")
    given = {stack: told(capsys, *lora, *(stack and ("--stack", stack)))[1].out for stack in stacks}
    assert given[""] == given["FSDP"] != given["Megatron-Core"]


HERE = ("--model", "gpt2", "--gpus", "8", "--batch", "64")
WHOLE = "is {!r}, but it must be a whole number from 1 to"
FAR = "which is not known here; nearest"
NO_WHOLE = ("0", "-4", "2.5", "1e3", "8k", "", "9" * 5000)
BAD = {  # the options, and what the sentence says; the option's name comes first in every sentence
    **{
        f"{option} {given[:8]}": ((*HERE, option, given), f"{option} {WHOLE.format(given)}")
        for option in ("--gpus", "--gpus-per-node", "--batch", "--seq", "--lora", "--row")
        for given in NO_WHOLE
    },
    **{
        f"--network {given}": ((*HERE, "--network", given), f"--network is {given!r}, but it must be a number from")
        for given in ("0", "-1", "nan", "inf", "1e-9", "fast", "")
    },
    **{
        f"{option} {given}": ((*HERE, option, given), f"{option} is {given!r}, {FAR}: {near}")
        for option, given, near in (
            ("--model", "llama3-70c", "llama3-70b"), ("--gpu", "h1oo", "H100"), ("--link", "NVLink 44", "NVLink 4"),
            ("--optimizer", "adamm", "adamw"), ("--stack", "Megatron Cor", "Megatron-Core"),
        )
    },
    **{
        f"{option} nothing like it": ((*HERE, option, "@@@"), f"{option} is '@@@', and none of the")
        for option in ("--model", "--gpu", "--link", "--optimizer", "--stack")
    },
    "--lang": ((*HERE, "--lang", "fr"), "--lang: invalid choice: 'fr'"),
    "no value": ((*HERE, "--gpu"), "--gpu: expected one argument; --help shows all options"),
    "no model": (("--gpus", "8"), "the following arguments are required: --model"),
    "no such option": ((*HERE, "--nodes", "2"), "unrecognized arguments: --nodes 2"),
    "a prime number": (("--model", "gpt2", "--gpus", "13"),
     "--gpus is 13, which is not a whole number of nodes of 8: give 8 or 16"),
    "larger nodes": ((*HERE, "--gpus-per-node", "16"),
     "--gpus is 8, which is not a whole number of nodes of 16: give 16,"),
    "rows": (("--model", "gpt2", "--gpus", "1", "--gpu", "T4", "--row", "9"), "--row is 9, but the table has"),
    "--mine a typo": ((*HERE, "--mine", "tp=2,pq=4"), "--mine .* 'pq' is not one of dp, tp"),
    "--mine another world": ((*HERE, "--mine", "tp=2,dp=8"), "--mine .* it is for 16 GPUs, but the cluster has 8"),
    "--mine heads": ((*HERE, "--mine", "tp=8"), "--mine .*: tp=8 does not divide num_heads=12"),
    "--mine chunks": ((*HERE, "--mine", "pp=4,dp=2,num_chunks=3,num_microbatches=2,micro_batch=16"),
     "--mine .*: 2 micro-batches do not divide by pp=4"),
    "--mine a value": ((*HERE, "--mine", "tp=2,zero=5"), "--mine .*: zero is 5, but it must be one of"),
    "--mine and --lora": ((*HERE, "--mine", "tp=2", "--lora", "8"), "--mine does not go together with --lora"),
    "--mine and --row": ((*HERE, "--mine", "tp=2", "--row", "2"), "--mine does not go together with --row"),
    "--page and --row": ((*HERE, "--row", "2", "--page", "x.html"), "--row does not go together with --page"),
    "images": (("--model", "resnet-50", "--gpus", "8", "--seq", "8"), "--seq is for transformers"),
    "images' optimizer": (("--model", "resnet-50", "--gpus", "8", "--optimizer", "sgd"),
     "--optimizer is for transformers"),
    "experts": (("--model", "mixtral-8x7b", "--gpus", "8", "--lora", "8"), "--lora is for models without experts"),
    "a batch of images": (("--model", "resnet-50", "--gpus", "8", "--batch", "3"),
     "take a batch .--batch, .* multiple of 8"),
    "--page in no folder": ((*HERE, "--page", "{tmp}/no/plan.html"),
     "--page is '.*/no/plan.html', but there is no folder"),
    "--page a folder": ((*HERE, "--page", "{tmp}"), "--page is '.*', which is a folder"),
    "--page nothing": ((*HERE, "--page", ""), "--page is '', which is a folder"),
    "--page too long": ((*HERE, "--page", "{tmp}/" + "x" * 300),
     "--page is '.*', and this file cannot be written: File name too long"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_sentence_that_names_the_option(capsys, tmp_path, case):
    options, says = BAD[case]
    code, (out, err) = told(capsys, *(option.replace("{tmp}", str(tmp_path)) for option in options))
    sentence = " ".join(err.split())
    assert code == 2 and not out and re.search(says if ".*" in says else re.escape(says), sentence), sentence
    assert not re.search(r"\b(ModelSpec|Plan|Link|Cluster|advise|criticise|step_time|usage|Errno)\b", sentence)


def test_every_option_has_a_bad_value_here():
    options = {text for action in cli.parser()._actions for text in action.option_strings} - {"-h", "--help", "--json"}
    assert options == {option for given, _ in BAD.values() for option in given if option in options}


def test_bad_input_is_a_sentence_in_chinese_too(capsys):
    code, (_, err) = told(capsys, *HERE, "--lang", "zh", "--seq", "0")
    assert code == 2 and err == "--seq 是 '0'，但它必须是 1 到 1,073,741,824 的整数。\n"
