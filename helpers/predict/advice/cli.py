"""Runs the command `python -m helpers plan --model llama3-405b --gpus 16384 --gpu H100 --batch 2048 --seq 8192`.

It reads the arguments, calls `advise` (or `criticise` with --mine), and prints text or JSON or writes a page.
`words("cli.nodes", …)` returns the message of that key in the language of --lang, from words/advice.yaml.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from helpers.learner.words import LANGUAGES, use_language
from helpers.learner.words.wrapping import complain, width, wrap
from helpers.predict.advice.advise import Advice, advise, default_batch
from helpers.predict.advice.criticise import Criticism, criticise, read_plan
from helpers.predict.advice.plans import words
from helpers.predict.time.convolutions import RESNET_50, RESNET_152, ResNet
from helpers.predict.time.stacks import STACKS
from helpers.specs import GPUS, LINKS, PRESETS, ROUTED, Cluster, Link
from helpers.specs.hardware import INTRA, NVLINK_2, PCIE_3

REFUSED = 2  # the exit code after a wrong argument, as argparse has it
MODELS = {**PRESETS, **ROUTED, "resnet-50": RESNET_50, "resnet-152": RESNET_152}
INSIDE = {**LINKS, "PCIe 3 x16": PCIE_3, "NVLink 2": NVLINK_2}  # the links that --link can name
CARD = 400  # Gb/s of network per GPU, where --network is not given


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    command = argparse.ArgumentParser(
        prog="python -m helpers plan", description="Which plan trains a model on a cluster: the ten best, and why."
    )
    command.add_argument("--model", required=True, help=f"{', '.join(MODELS)}")
    command.add_argument("--gpus", type=int, required=True, help="how many, over all nodes")
    command.add_argument("--gpu", default="H100", help=f"{', '.join(GPUS)}")
    command.add_argument("--gpus-per-node", type=int, help="8, or all where there are fewer")
    command.add_argument("--link", help=f"what joins the GPUs of a node, if not the usual: {', '.join(INSIDE)}")
    command.add_argument(
        "--network", type=float, help=f"Gb/s of a node, all its cards; {CARD} for each GPU if left out"
    )
    command.add_argument("--batch", type=int, help="sequences (or images) of a step, over all GPUs")
    command.add_argument("--seq", type=int, help="tokens of a sequence, if not the model's")
    command.add_argument("--lora", type=int, metavar="RANK", help="train adapters of this rank alone")
    command.add_argument("--optimizer", default="adamw", help="adamw, adamw_8bit, sgd or sgd_momentum")
    command.add_argument("--stack", help=f"{', '.join(STACKS)}; if left out Megatron-Core, with --lora FSDP")
    command.add_argument("--mine", metavar="PLAN", help="your own plan, to be criticised: tp=8,pp=4")
    command.add_argument("--json", action="store_true", help="print numbers as JSON")
    command.add_argument("--page", type=Path, metavar="FILE", help="write a page to print, HTML")
    command.add_argument("--lang", choices=LANGUAGES, help="of what is said")
    return command


def main(argv: list[str]) -> int:
    """Run the command. Returns the exit code: 0, or 2 after a sentence about what cannot be planned."""
    options = parser().parse_args(argv)
    with use_language(options.lang):
        try:
            result = _run(options)
            if options.page and isinstance(result, Advice):
                result.page(options.page)
        except (ValueError, OSError) as problem:
            complain(str(problem))  # prints the message on stderr
            return REFUSED
        if options.json:
            print(json.dumps(result.as_json(), ensure_ascii=False))
            return 0
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
        for line in repr(result).split("\n"):
            if width(line) <= columns:
                print(line)
                continue
            # Two spaces separate the columns of a table. Only the text of the last column is wrapped. `width` counts
            # the columns of the terminal, of which a Chinese character takes two.
            before, gap, sentence = line.rpartition("  ")
            print(*wrap(sentence, columns, first=before + gap, rest="     "), sep="\n")  # rest: indents further lines
        if options.page and isinstance(result, Advice):
            print("", words("written", path=options.page), sep="\n")
    return 0


def _run(options: argparse.Namespace) -> Advice | Criticism:
    """The advice for these arguments, or with --mine the criticism. ValueError for what cannot be planned."""
    model, cluster = _named(MODELS, options.model, "--model"), _cluster(options)
    planning: dict[str, Any] = dict(global_batch=options.batch, optimizer=options.optimizer)
    if options.stack is not None:
        planning["stack"] = _named(STACKS, options.stack, "--stack")
    if isinstance(model, ResNet):  # for which these three options have no meaning
        if given := [name for name in ("seq", "lora", "mine") if getattr(options, name) is not None]:
            raise ValueError(words("cli.no_images", name=f"--{given[0]}", model=options.model))
        return advise(model, cluster, **planning)
    planning |= {"seq": options.seq}
    if options.mine is None:
        return advise(model, cluster, lora=options.lora, **planning)
    if options.lora is not None or options.page is not None:
        raise ValueError(words("cli.mine_alone"))
    return _criticised(options.mine, model, cluster, planning)


def _criticised(text: str, model, cluster: Cluster, planning: dict[str, Any]) -> Criticism:
    """Read the plan that the user typed, and criticise it. planning: the keyword arguments of `advise`."""
    spec = replace(model, seq=planning["seq"] or model.seq)
    batch = planning["global_batch"] or default_batch(cluster)
    try:
        plan = read_plan(text, spec, cluster, batch)
    except ValueError as error:
        raise ValueError(words("typed.no_plan", given=text, reason=str(error).rstrip("."))) from None
    return criticise(
        model, cluster, replace(plan, optimizer=planning["optimizer"]), **{**planning, "global_batch": batch}
    )


def _cluster(options: argparse.Namespace) -> Cluster:
    """The cluster that --gpus, --gpu, --gpus-per-node, --link and --network describe."""
    gpu = _name(GPUS, options.gpu, "--gpu")
    if options.gpus < 1:
        raise ValueError(words("cli.no_gpus", gpus=options.gpus))
    each = min(8, options.gpus) if options.gpus_per_node is None else options.gpus_per_node  # GPUs of a node
    if each < 1 or options.gpus % each:  # name the nearest numbers of GPUs that fill their nodes
        node = max(1, each)
        below = max(1, options.gpus // node) * node
        raise ValueError(words("cli.nodes", gpus=options.gpus, each=each, below=below, above=below + node))
    inside = INTRA[gpu] if options.link is None else _named(INSIDE, options.link, "--link")
    network = CARD * each if options.network is None else options.network
    return Cluster(
        gpu=GPUS[gpu], gpus_per_node=each, num_nodes=options.gpus // each, intra=inside,
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
    raise ValueError(words("cli.unknown", option=option, given=given, near=near or [*known]))


def _plain(name: str) -> str:
    """The name without case, spaces, hyphens and underscores, by which names are compared."""
    return name.lower().replace(" ", "").replace("-", "").replace("_", "")
