"""Runs the command `python -m helpers plan --model llama3-405b --gpus 16384 --gpu H100 --batch 2048 --seq 8192`.

It reads the arguments, calls `advise` (or `criticise` with --mine), and prints text or JSON or writes a page. Every
value arrives as text and is checked here, so that a wrong one is answered in a sentence that names its option.
`words("cli.nodes", …)` returns the message of that key in the language of --lang, from words/advice.yaml.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from helpers.learner.words import LANGUAGES, language, use_language
from helpers.learner.words.wrapping import complain, wrap
from helpers.predict.advice import summary
from helpers.predict.advice.advise import Advice, advise, default_batch, estimate_as_json
from helpers.predict.advice.choice import SHOWN
from helpers.predict.advice.criticise import Criticism, criticise, read_plan
from helpers.predict.advice.plans import words
from helpers.predict.time.convolutions import RESNET_50, RESNET_152, ResNet
from helpers.predict.time.stacks import STACKS
from helpers.specs import GPUS, LINKS, PRESETS, ROUTED, Cluster, Link, Plan
from helpers.specs.hardware import INTRA, NVLINK_2, PCIE_3

REFUSED = 2  # the exit code after a wrong argument, as argparse has it
MODELS = {**PRESETS, **ROUTED, "resnet-50": RESNET_50, "resnet-152": RESNET_152}
INSIDE = {**LINKS, "PCIe 3 x16": PCIE_3, "NVLink 2": NVLINK_2}  # the links that --link can name
OPTIMIZERS = {name: name for name in Plan.KNOWN["optimizer"]}
CARD = 400  # Gb/s of network per GPU, where --network is not given
SLOWEST, FASTEST = 0.001, 1_000_000  # Gb/s that --network takes
# The largest value of each option that is a whole number; beyond it the search would take minutes.
MOST = {"gpus": 2**20, "gpus_per_node": 2**10, "batch": 2**30, "seq": 2**30, "lora": 2**16, "row": SHOWN}


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises ValueError with one sentence for a wrong option, and does not print the usage."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(words("cli.arguments", message=message.removeprefix("argument ")))


def parser() -> argparse.ArgumentParser:
    """The command's arguments. All values are texts."""
    command = _Parser(
        prog="python -m helpers plan",
        description="Which plan trains a model on a cluster: up to ten that fit, which of them cannot be told apart, "
        "what limits each, and what speaks against it.",
    )
    add = command.add_argument
    add("--model", required=True, help=f"{', '.join(MODELS)}")
    add("--gpus", required=True, help="how many, over all nodes")
    add("--gpu", default="H100", help=f"{', '.join(GPUS)}")
    add("--gpus-per-node", metavar="GPUS", help="8, or all where there are fewer")
    add("--link", help=f"what joins the GPUs of a node, if not the usual: {', '.join(INSIDE)}")
    add("--network", metavar="GBPS", help=f"Gb/s of a node, all its cards; {CARD} for each GPU if left out")
    add("--batch", help="sequences (or images) of a step, over all GPUs")
    add("--seq", help="tokens of a sequence, if not the model's")
    add("--lora", metavar="RANK", help="train adapters of this rank alone")
    add("--optimizer", help=f"{', '.join(OPTIMIZERS)}; adamw if left out")
    add("--stack", help=f"{', '.join(STACKS)}; if left out Megatron-Core, with --lora FSDP")
    add("--row", metavar="PLACE", help="explain the plan at this place of the table: 1 for the first")
    add("--mine", metavar="PLAN", help="your own plan, to be criticised: tp=8,pp=4")
    add("--json", action="store_true", help="print numbers as JSON")
    add("--page", metavar="FILE", help="write a page to print, HTML")
    add("--lang", choices=LANGUAGES, help="of what is said")
    return command


def main(argv: list[str]) -> int:
    """Run the command. Returns the exit code: 0, or 2 after a sentence about what cannot be planned."""
    try:
        options = parser().parse_args(argv)
    except ValueError as problem:
        complain(str(problem))  # prints the message on stderr
        return REFUSED
    with use_language(language(options.lang)):  # looks the language up once instead of for each text
        try:
            _check_numbers(options)
            _check_together(options)
            result = _run(options)
            if options.page is not None:
                result.page(options.page)
        except ValueError as problem:
            complain(str(problem))
            return REFUSED
        _print(result, options)
    return 0


def _print(result: Advice | Criticism, options: argparse.Namespace) -> None:
    """Print the result as JSON or as text: of an Advice all of it, or with --row the explanation of one plan."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else summary.COLUMNS
    if options.json:
        values = result.as_json() if options.row is None else estimate_as_json(result.best[options.row - 1])
        print(json.dumps(values, ensure_ascii=False))
    elif isinstance(result, Criticism):
        for sentence in result.sentences:
            print(*wrap(sentence, columns, rest="     "), sep="\n")  # rest: indents further lines
    elif options.row is not None:
        print(summary.explanation(result, options.row, columns))
    else:
        print(summary.text(result, columns))
    if options.page is not None and not options.json:
        print("", words("written", path=options.page), sep="\n")


def _check_numbers(options: argparse.Namespace) -> None:
    """Replace the texts of the options that are numbers by numbers. ValueError where one is no number in its range."""
    for name, most in MOST.items():
        given = getattr(options, name)
        if given is None:
            continue
        if not re.fullmatch(r"[0-9]{1,12}", given) or not 1 <= int(given) <= most:
            raise ValueError(words("cli.whole", option=_option(name), given=given, most=most))
        setattr(options, name, int(given))
    if options.network is not None:
        try:
            network = float(options.network)
        except ValueError:
            network = 0.0
        if not SLOWEST <= network <= FASTEST:  # false for nan, too
            raise ValueError(words("cli.network", given=options.network, least=SLOWEST, most=FASTEST))
        options.network = network


def _option(name: str) -> str:
    """The option of a name: "--gpus-per-node" of "gpus_per_node"."""
    return "--" + name.replace("_", "-")


def _check_together(options: argparse.Namespace) -> None:
    """Raise ValueError for options that exclude each other or the model, and for a page that cannot be written."""
    model = _named(MODELS, options.model, "--model")
    if isinstance(model, ResNet):  # for which these options have no meaning
        if given := [name for name in ("seq", "lora", "mine", "optimizer") if getattr(options, name) is not None]:
            raise ValueError(words("cli.no_images", name=_option(given[0]), model=options.model))
    elif options.lora is not None and model.num_experts > 1:
        raise ValueError(words("cli.no_experts", model=options.model, experts=model.num_experts))
    for alone in ("mine", "row"):
        others = [name for name in ("lora", "row", "page") if name != alone and getattr(options, name) is not None]
        others = [name for name in others if alone == "mine" or name == "page"]
        if getattr(options, alone) is not None and others:
            raise ValueError(words("cli.alone", name=_option(alone), other=_option(others[0])))
    if options.page is not None:
        _check_page(options.page)


def _check_page(given: str) -> None:
    """Raise ValueError where the file of --page cannot be written, before the search begins."""
    target = Path(given)
    try:
        if target.is_dir():
            raise ValueError(words("cli.page_folder", given=given))
        if not target.parent.is_dir():
            raise ValueError(words("cli.no_folder", given=given, folder=target.parent))
        target.open("ab").close()  # leaves what an existing file has
    except OSError as error:
        raise ValueError(words("cli.page", given=given, reason=error.strerror)) from None


def _run(options: argparse.Namespace) -> Advice | Criticism:
    """The advice for these arguments, or with --mine the criticism. ValueError for what cannot be planned."""
    model, cluster = _named(MODELS, options.model, "--model"), _cluster(options)
    planning: dict[str, Any] = dict(global_batch=options.batch)
    if options.optimizer is not None:
        planning["optimizer"] = _named(OPTIMIZERS, options.optimizer, "--optimizer")
    if options.stack is not None:
        planning["stack"] = _named(STACKS, options.stack, "--stack")
    if isinstance(model, ResNet):
        found = advise(model, cluster, **planning)
    elif options.mine is not None:
        return _criticised(options.mine, model, cluster, planning | {"seq": options.seq})
    else:
        found = advise(model, cluster, seq=options.seq, lora=options.lora, **planning)
    if not found.best:
        options.row = None  # that nothing fits is the answer, whichever row was asked for
    elif options.row is not None and options.row > len(found.best):
        raise ValueError(words("cli.row", given=options.row, count=len(found.best)))
    return found


def _criticised(text: str, model, cluster: Cluster, planning: dict[str, Any]) -> Criticism:
    """Read the plan that the user typed, and criticise it. planning: the keyword arguments of `advise`."""
    spec = replace(model, seq=planning["seq"] or model.seq)
    planning["global_batch"] = planning["global_batch"] or default_batch(cluster)
    try:
        plan = read_plan(text, spec, cluster, planning["global_batch"])
        plan = replace(plan, optimizer=planning.get("optimizer", plan.optimizer))
        return criticise(model, cluster, plan, **planning)
    except ValueError as error:
        reason = re.sub(r"^\w+: ", "", str(error)).rstrip(".")  # without the name of the class that refuses it
        raise ValueError(words("cli.mine", given=text, reason=reason)) from None


def _cluster(options: argparse.Namespace) -> Cluster:
    """The cluster that --gpus, --gpu, --gpus-per-node, --link and --network describe."""
    gpu, gpus = _name(GPUS, options.gpu, "--gpu"), options.gpus
    each = min(8, gpus) if options.gpus_per_node is None else options.gpus_per_node  # GPUs of a node
    if gpus % each:  # name the nearest numbers of GPUs that fill their nodes
        near = sorted({max(1, gpus // each) * each, (gpus // each + 1) * each})
        raise ValueError(words("cli.nodes", gpus=gpus, each=each, near=[f"{number:,}" for number in near]))
    inside = INTRA[gpu] if options.link is None else _named(INSIDE, options.link, "--link")
    network = CARD * each if options.network is None else options.network
    return Cluster(
        gpu=GPUS[gpu], gpus_per_node=each, num_nodes=gpus // each, intra=inside,
        # One card per GPU; --network is the rate of all cards of a node together.
        inter=Link.from_gigabits(network / each, latency=5e-6), network_cards=each,
    )  # fmt: skip


def _named(known: Mapping[str, Any], given: str, option: str) -> Any:
    """The value of `known` whose key was meant. option: the option that was given, for the message."""
    return known[_name(known, given, option)]


def _name(known: Mapping[str, Any], given: str, option: str) -> str:
    """The key of `known` that was meant, whatever its case and hyphens. ValueError names the nearest keys."""
    plain = {_plain(name): name for name in known}
    if _plain(given) in plain:
        return plain[_plain(given)]
    near = [plain[name] for name in get_close_matches(_plain(given), plain, n=3, cutoff=0.5)]
    if near:
        raise ValueError(words("cli.unknown", option=option, given=given, near=near))
    raise ValueError(words("cli.like_none", option=option, given=given, count=len(known), some=[*known][:3]))


def _plain(name: str) -> str:
    """The name without case, spaces, hyphens and underscores, by which names are compared."""
    return name.lower().replace(" ", "").replace("-", "").replace("_", "")
