"""One table of rates: the time model's constants are its entries, and so are those that cards and chapters quote."""

import inspect
import re

import pytest

from helpers.chapters.tensor_parallel_timing import LayerTimes
from helpers.interview import load_all
from helpers.predict.time.collectives import best_rate, collective_seconds, tokens_that_hide
from helpers.predict.time.kernels import sustained_share
from helpers.predict.time.zero import compare_stages
from helpers.specs import CLUSTERS, GPUS, LINKS, PRESETS
from helpers.specs.hardware import COMPUTE_SHARE, NVLINK_2, REACHED, reached, switch_seconds
from tests.notebooks.chapter import PAGES, load, source

GIB = 2**30
# GB/s that stand beside NVLink and are no rate of NVLink's own: a card of 400 Gb/s; PCIe 4; what a question assumes.
OTHERS = {50, 32, 350, 200}
# An H800's NVLink: 400 GB/s in both directions together, of which DeepSeek reports 160 reached in one.
H800 = {400, 160}
BESIDE = re.compile(r"NVLink|NVLS|NVSwitch|line rate")
SENTENCE = re.compile(r"(?<=[.!?:;])\s+")


def test_the_time_model_uses_the_rates_of_the_table():
    assert best_rate(CLUSTERS["8 H100"]) == pytest.approx(REACHED["NVLink 4"].ring)
    assert best_rate(CLUSTERS["8 A100"]) == pytest.approx(REACHED["NVLink 3"].ring)
    ring, nvls = (collective_seconds("all_reduce", 64 * GIB, 8, CLUSTERS["8 H100"], nvls=n)[0] for n in (False, True))
    assert ring / nvls == pytest.approx(REACHED["NVLink 4"].nvls / REACHED["NVLink 4"].ring, rel=0.01)


def test_the_share_of_the_peak_is_the_same_wherever_an_example_assumes_one():
    default = inspect.signature(compare_stages).parameters["flops_per_second"].default
    assert default == pytest.approx(COMPUTE_SHARE * GPUS["H100"].flops)
    assert inspect.signature(tokens_that_hide).parameters["efficiency"].default == COMPUTE_SHARE


def test_a_reached_rate_is_below_the_line_rate_and_nvls_above_the_ring():
    for name, rate in REACHED.items():
        assert 0.7 < rate.ring / LINKS[name].bandwidth < 0.9
        assert reached(name).bandwidth == rate.ring and reached(name).latency == LINKS[name].latency
    assert REACHED["NVLink 4"].nvls > LINKS["NVLink 4"].bandwidth > REACHED["NVLink 4"].ring


def test_the_switch_takes_as_long_as_the_busbw_of_eight_gpus_says():
    took = switch_seconds(16 * GIB, "NVLink 4")
    assert 1.75 * 16 * GIB / took == pytest.approx(REACHED["NVLink 4"].nvls, rel=0.001)
    assert switch_seconds(16 * GIB, "NVLink 5") == pytest.approx(took / 2, rel=0.001)


def rates_of_the_table() -> set[int]:
    """In GB/s as a text prints them: line rates, both directions together, and what is reached, rounded to 10."""
    lines = [link.bandwidth / 1e9 for link in (*LINKS.values(), NVLINK_2)]
    found = [one for rate in REACHED.values() for one in (rate.ring, rate.nvls) if one]
    return {round(one * both) for one in lines for both in (1, 2)} | {round(one / 1e10) * 10 for one in found}


def unknown_rates(text: str) -> dict[str, set[int]]:
    """Sentences of a text with a rate beside NVLink that the table does not have."""
    known = rates_of_the_table() | OTHERS | H800
    return {
        one: lost
        for one in SENTENCE.split(" ".join(text.split()))
        if BESIDE.search(one) and (lost := {int(number) for number in re.findall(r"(\d+) ?GB/s", one)} - known)
    }


def test_cards_quote_no_rate_of_nvlink_that_the_table_does_not_have():
    assert {card.id: lost for card in load_all() if (lost := unknown_rates(card.full_answer("en")))} == {}


def test_chapters_quote_no_rate_of_nvlink_that_the_table_does_not_have():
    texts = {path.stem: "\n".join(source(cell) for cell in load(path)) for path in PAGES}
    assert {name: lost for name, text in texts.items() if (lost := unknown_rates(text))} == {}


def made(value: object, what: str, key: str = "") -> list:
    """What the arguments of a card's calls hold: each mapping that makes a `what`, or each number under such a key."""
    if isinstance(value, dict):
        own = [value] if value.get("make") == what else []
        return own + [found for name, one in value.items() for found in made(one, what, name)]
    if isinstance(value, list | tuple):
        return [found for one in value for found in made(one, what)]
    return [value] if what in key else []


def test_the_calls_of_cards_take_gpus_and_rates_of_the_table():
    arguments = [[list(check.args), check.kwargs] for card in load_all() for check in card.verify]
    by_name = {gpu.name: gpu for gpu in GPUS.values()} | GPUS
    gpus = [one for each in arguments for one in made(each, "helpers.specs.GPU")]
    assert len(gpus) >= 5
    for one in gpus:
        fields = {name: value for name, value in one.items() if name not in ("make", "name")}
        assert {name: getattr(by_name[one["name"]], name) for name in fields} == fields
    peaks = {gpu.flops for gpu in GPUS.values()}
    # Narayanan et al. 2021 publish 140 TFLOP/s per GPU for GPT-3; Yang et al. 2024 count on 800 TFLOP/s of an H100.
    # NVIDIA's data sheet gives an H100, and so an H800, 1,979 TFLOP/s in FP8.
    known = peaks | {COMPUTE_SHARE * peak for peak in peaks} | {140e12, 800e12, 1979e12}
    assert {one for each in arguments for one in made(each, "flops")} <= known


def shares_of_the_peak(text: str) -> set[int]:
    """The percentages at which a text lets an example compute, such as 40 for "at 40 % of an H100's peak"."""
    return set(map(int, re.findall(r"at (\d+) % of (?:(?:the|an? \w+'s) peak|989 TFLOP/s)", " ".join(text.split()))))


def test_examples_compute_at_the_share_of_the_table_and_products_at_the_time_models():
    texts = [card.full_answer("en") for card in load_all()]
    texts += ["\n".join(source(cell) for cell in load(path)) for path in PAGES]
    found = [shares_of_the_peak(text) for text in texts]
    asked = {60}  # a row of chapter 07 that says what faster compute would change
    assert sum(map(bool, found)) >= 5 and set().union(*found) - asked == {round(100 * COMPUTE_SHARE)}
    (card,) = (card for card in load_all() if card.id == "scaling-the-other-half")
    assert f"at about {100 * sustained_share(GPUS['H100']):.0f} % of the data sheet" in card.full_answer("en")


def test_a_rate_that_the_table_does_not_have_is_found():
    assert unknown_rates("A ring over NVLink 4 reaches about 390 GB/s. The disk reads 7 GB/s.") == {
        "A ring over NVLink 4 reaches about 390 GB/s.": {390}
    }


def test_chapter_07_says_what_the_table_gives_for_its_example():
    """The share that waits at the rate a ring reaches, and in an NVL72 where the switch adds up."""
    text = " ".join(" ".join(source(cell).split()) for cell in load(next(p for p in PAGES if p.stem[:2] == "07")))
    llama, message = PRESETS["llama3-70b"], 2 * 8192 * 8192
    ring = LayerTimes.of(llama, GPUS["H100"], reached("NVLink 4"), 8).waiting_share
    assert f"| ring at 370 GB/s | {100 * ring:.0f} % |" in text
    adds = 4 * switch_seconds(message, "NVLink 5")
    wide, narrow = (LayerTimes.of(llama, GPUS["GB200"], LINKS["NVLink 5"], n).busy for n in (64, 8))
    assert f"0.006) ms = {1e3 * adds:.1f} ms waiting" in text
    assert f"{1e3 * wide:.2f}) = {100 * adds / (adds + wide):.0f} %" in text
    assert f"With NVLS on 8 of these GPUs, a GPU waits for {100 * adds / (adds + narrow):.0f} % of the step" in text


def test_chapter_06_says_at_which_rate_a_message_takes_as_long_as_a_forward():
    text = " ".join(" ".join(source(cell).split()) for cell in load(next(p for p in PAGES if p.stem[:2] == "06")))
    layers = LayerTimes.of(PRESETS["llama3-70b"], GPUS["H100"], LINKS["NVLink 4"], 8)
    forward, message = 80 / 4 * sum(layers.compute), layers.message
    assert LINKS["10 Gb/s"].seconds(message) == pytest.approx(forward, rel=0.05)
    share = LINKS["400 Gb/s"].seconds(message) / forward
    assert "If a message takes as long as a forward (at about 10 Gb/s)" in text
    # The chapter counts causal attention, and these times the whole of it.
    (printed,) = re.findall(r"share 2.7 ms / 97 ms = (\S+) %", text)
    assert float(printed) == pytest.approx(100 * share, rel=0.1)
