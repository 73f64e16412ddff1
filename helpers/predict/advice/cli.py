"""Runs the command `python -m helpers plan --model llama3-405b --gpus 16384 --gpu H100 --batch 2048 --seq 8192`.

It reads the arguments, calls `advise` (or `criticise` with --mine), and prints text or JSON or writes a page.
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

from helpers.learner.words import LANGUAGES, reading
from helpers.learner.words.wrapping import complain, width, wrap
from helpers.predict.advice.advise import Advice, advise, default_batch
from helpers.predict.advice.criticise import Criticism, criticise, read_plan
from helpers.predict.advice.plans import words
from helpers.predict.time.convolutions import RESNET_50, RESNET_152, ResNet
from helpers.predict.time.stacks import STACKS
from helpers.specs import GPUS, LINKS, PRESETS, ROUTED, Cluster, Link
from helpers.specs.hardware import INTRA, NVLINK_2, PCIE_3

REFUSED = 2  # the exit code, as argparse has it
MODELS = {**PRESETS, **ROUTED, "resnet-50": RESNET_50, "resnet-152": RESNET_152}
INSIDE = {**LINKS, "PCIe 3 x16": PCIE_3, "NVLink 2": NVLINK_2}
CARD = 400  # Gb/s for each GPU, where the network is not given


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m helpers plan", description="Which plan trains a model on a cluster: the ten best, and why."
    )
    made.add_argument("--model", required=True, help=f"{', '.join(MODELS)}")
    made.add_argument("--gpus", type=int, required=True, help="how many, over all nodes")
    made.add_argument("--gpu", default="H100", help=f"{', '.join(GPUS)}")
    made.add_argument("--gpus-per-node", type=int, help="8, or all where there are fewer")
    made.add_argument("--link", help=f"what joins the GPUs of a node, if not the usual: {', '.join(INSIDE)}")
    made.add_argument("--network", type=float, help=f"Gb/s of a node, all its cards; {CARD} for each GPU if left out")
    made.add_argument("--batch", type=int, help="sequences (or images) of a step, over all GPUs")
    made.add_argument("--seq", type=int, help="tokens of a sequence, if not the model's")
    made.add_argument("--lora", type=int, metavar="RANK", help="train adapters of this rank alone")
    made.add_argument("--optimizer", default="adamw", help="adamw, adamw_8bit, sgd or sgd_momentum")
    made.add_argument("--stack", help=f"{', '.join(STACKS)}; if left out Megatron-Core, with --lora FSDP")
    made.add_argument("--mine", metavar="PLAN", help="your own plan, to be criticised: tp=8,pp=4")
    made.add_argument("--json", action="store_true", help="print numbers as JSON")
    made.add_argument("--page", type=Path, metavar="FILE", help="write a page to print, HTML")
    made.add_argument("--lang", choices=LANGUAGES, help="of what is said")
    return made


def main(arguments: list[str]) -> int:
    """Run the command. Returns the exit code: 0, or 2 after a sentence about what cannot be planned."""
    asked = parser().parse_args(arguments)
    with reading(asked.lang):
        try:
            found = _asked(asked)
            if asked.page and isinstance(found, Advice):
                found.page(asked.page)
        except (ValueError, OSError) as problem:
            complain(str(problem))
            return REFUSED
        if asked.json:
            print(json.dumps(found.as_json(), ensure_ascii=False))
            return 0
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
        for text in repr(found).split("\n"):
            columned, gap, sentence = text.rpartition("  ")  # what stands in columns keeps its place
            whole = width(text) <= columns
            print(*([text] if whole else wrap(sentence, columns, first=columned + gap, rest="     ")), sep="\n")
        if asked.page and isinstance(found, Advice):
            print("", words("written", path=asked.page), sep="\n")
    return 0


def _asked(asked: argparse.Namespace) -> Advice | Criticism:
    model, cluster = _named(MODELS, asked.model, "--model"), _cluster(asked)
    what: dict[str, Any] = dict(global_batch=asked.batch, optimizer=asked.optimizer)
    if asked.stack is not None:
        what["stack"] = _named(STACKS, asked.stack, "--stack")
    if isinstance(model, ResNet):
        if given := [name for name in ("seq", "lora", "mine") if getattr(asked, name) is not None]:
            raise ValueError(words("cli.no_images", name=f"--{given[0]}", model=asked.model))
        return advise(model, cluster, **what)
    what |= {"seq": asked.seq}
    if asked.mine is None:
        return advise(model, cluster, lora=asked.lora, **what)
    if asked.lora is not None or asked.page is not None:
        raise ValueError(words("cli.mine_alone"))
    return _criticised(asked.mine, model, cluster, what)


def _criticised(text: str, model, cluster: Cluster, what: dict[str, Any]) -> Criticism:
    spec = replace(model, seq=what["seq"] or model.seq)
    batch = what["global_batch"] or default_batch(cluster)
    try:
        plan = read_plan(text, spec, cluster, batch)
    except ValueError as error:
        raise ValueError(words("typed.no_plan", given=text, reason=str(error).rstrip("."))) from None
    return criticise(model, cluster, replace(plan, optimizer=what["optimizer"]), **{**what, "global_batch": batch})


def _cluster(asked: argparse.Namespace) -> Cluster:
    gpu = _name(GPUS, asked.gpu, "--gpu")
    if asked.gpus < 1:
        raise ValueError(words("cli.no_gpus", gpus=asked.gpus))
    each = min(8, asked.gpus) if asked.gpus_per_node is None else asked.gpus_per_node
    if each < 1 or asked.gpus % each:
        below = max(1, asked.gpus // max(1, each)) * max(1, each)
        raise ValueError(words("cli.nodes", gpus=asked.gpus, each=each, below=below, above=below + max(1, each)))
    inside = INTRA[gpu] if asked.link is None else _named(INSIDE, asked.link, "--link")
    network = CARD * each if asked.network is None else asked.network
    return Cluster(
        gpu=GPUS[gpu], gpus_per_node=each, num_nodes=asked.gpus // each, intra=inside,
        inter=Link.from_gigabits(network / each, latency=5e-6), network_cards=each,
    )  # fmt: skip


def _named(known: Mapping[str, Any], given: str, option: str) -> Any:
    return known[_name(known, given, option)]


def _name(known: Mapping[str, Any], given: str, option: str) -> str:
    """The key of `known` that was meant, whatever its case and hyphens. ValueError names the nearest keys."""
    plain = {_plain(name): name for name in known}
    if _plain(given) in plain:
        return plain[_plain(given)]
    near = [plain[name] for name in get_close_matches(_plain(given), plain, n=3, cutoff=0.5)]
    raise ValueError(words("cli.unknown", option=option, given=given, near=near or [*known]))


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "").replace("_", "")
