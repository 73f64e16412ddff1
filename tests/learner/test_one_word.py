"""One Chinese word per term: what the glossary leads with is what cards, drills, myths, hints and messages write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.interview.reference_tables import glossary
from helpers.learner.yaml_file import read_yaml

HELPERS = Path(__file__).resolve().parents[2] / "helpers"
FILES = sorted(
    path
    for pattern in ("interview/**/*.yaml", "learner/words/*.yaml", "learner/guesses/*.yaml", "grading/**/hints.yaml")
    for path in HELPERS.glob(pattern)
    if path.name != "glossary.yaml"  # it lists the other words, too
)
assert len(FILES) > 60, "a pattern finds nothing any more"
CODE = re.compile(r"`[^`]*`|\{[^}]*\}")
# English term -> what is not written for it in Chinese. The word to write is the glossary's first.
NOT_WRITTEN = {
    "micro-batch": r"(?i)(?<!_)micro-?batch|微批(?!次)|小批次",
    "process group": r"通信组",
    "straggler": r"慢节点|落后者",
    "activations": r"激活(?=[从发就（；、，。]|的显存|占)",
    "stage": r"\d 个阶段|首阶段|末阶段|第一阶段只",
    "loss": r"(辅助|语言|序列级|交叉熵|算出?|平均|完整的|GRPO 的)损失|损失(?=函数|值|是对的|不收集|写成|取平均|和梯度)",
    "message": r"讯息|报文",
    "FSDP": r"全切分",
    "barrier": r"屏障",
    "KV cache": r"键值缓存|KV 缓存",
    "ring attention": r"环形注意力",
    "recomputation": r"重新?计算激活|激活重算",
    "tensor parallelism": r"张量平行|模型并行度",
    "pipeline parallelism": r"管道并行|流水并行",
}


def chinese(node: Any) -> Iterator[str]:
    """Every text under `zh:`, without code and without the names of what is filled in."""
    if isinstance(node, dict):
        own = node.get("zh")
        yield from (CODE.sub("", text) for text in ([own] if isinstance(own, str) else []))
        yield from (text for key, value in node.items() if key != "zh" for text in chinese(value))
    elif isinstance(node, list):
        yield from (text for item in node for text in chinese(item))


def others(texts: Iterator[str]) -> list[tuple[str, str]]:
    """(term, what stands there) of each word that is not the glossary's."""
    texts = list(texts)
    return [
        (term, found[0]) for text in texts for term, word in NOT_WRITTEN.items() for found in re.finditer(word, text)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HELPERS)))
def test_a_term_has_one_word(path):
    assert others(chinese(read_yaml(path))) == []


def test_the_word_to_write_stands_in_the_glossary_and_is_no_other():
    leading = {term.term: term.zh[0] for term in glossary()}
    assert not [term for term, word in NOT_WRITTEN.items() if re.search(word, leading[term])]


def test_another_word_is_found_wherever_it_stands():
    planted = [{"zh": "每个 micro-batch 一次"}, {"deep": {"zh": "等慢节点"}}, {"zh": "`num_microbatches` 个"}]
    planted += [{"zh": "分块计算损失函数，每次故障损失十分钟，bf16 不需要损失缩放"}]
    found = [("micro-batch", "micro-batch"), ("straggler", "慢节点"), ("loss", "算损失")]
    assert others(chinese(planted)) == found


def test_a_zero_stage_is_no_stage_of_a_pipeline():
    """第 2 级, since 阶段 is a part of a pipeline."""
    said = [text for path in FILES for text in chinese(read_yaml(path)) if "ZeRO" in text]
    assert not [text for text in said if re.search(r"第 ?[123](、[123])* ?阶段", text)]
