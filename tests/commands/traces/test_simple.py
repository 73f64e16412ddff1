"""The plain reader of traces: copied alone it passes the lab, and it agrees with the package's reader, on GPUs too."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from helpers.chapters import profiling_gpu
from helpers.commands.traces import explain, read, simple
from helpers.grading import grade
from tests.commands.traces.conftest import make
from tests.standalone import standalone

MAX_BYTES = 300_000
GPU_TRACES = sorted(profiling_gpu.TRACES.glob("*.json.gz"))


@pytest.mark.parametrize(("task", "name"), [("10.split", "split"), ("10.exposed", "exposed")])
def test_a_copy_of_the_file_alone_passes_the_labs_check(ranks, tmp_path, task, name):
    path = standalone(simple, tmp_path)

    def split(calls):
        return runpy.run_path(path)["split"](calls)

    def exposed(communication, compute):
        return runpy.run_path(path)["exposed"](communication, compute)

    verdict = grade(task, split if name == "split" else exposed, ranks=ranks[:1])
    assert verdict.passed, verdict


def test_it_divides_messages_like_explain_though_clocks_differ(tmp_path):
    folder = make(
        tmp_path / "run", world=3, steps=12, clocks={1: (0.4, 0.0), 2: (-0.3, 0.0)}, one_host=False,
        extra=lambda rank, step, part: 0.03 if (rank, part) == (2, "compute") else 0.0,
    )  # fmt: skip
    run = read(folder)
    files = sorted(Path(folder).rglob("*.json*"))
    calls = simple.on_one_clock([simple.message_calls(simple.load_events(file)) for file in files])
    for rank, messages in enumerate(simple.split(calls)):
        own = [message for message in run.messages if message.rank == rank]
        assert len(own) == len(messages)
        waiting = sum(min(one.last_ready, one.end) - one.ready for one in own)
        assert sum(seconds for seconds, _ in messages.values()) == pytest.approx(waiting, abs=2e-3 * len(own))


@pytest.mark.parametrize("path", GPU_TRACES, ids=lambda path: path.name.partition(".")[0])
def test_a_public_gpu_trace_is_small_named_with_its_licence_and_read_alike_by_both_readers(path):
    assert path.stat().st_size <= MAX_BYTES
    told = (profiling_gpu.TRACES / "README.md").read_text(encoding="utf-8")
    assert f"`{path.name.partition('.')[0]}`" in told and "MIT License" in told and "BSD License" in told
    explanation = explain(read(path))
    assert explanation.on_gpu and explanation.has_steps and explanation.operators
    seconds = simple.gpu_seconds(simple.load_events(path))
    assert seconds["step"] == pytest.approx(explanation.seconds)
    assert seconds["compute"] == pytest.approx(explanation.parts["compute"], abs=1e-5)
    # explain says that the loader, and not a message, owns an instant in which both run and nothing computes
    loading = explanation.parts["data"]
    assert explanation.parts["communication"] <= seconds["exposed messages"] + 1e-5
    assert seconds["exposed messages"] <= explanation.parts["communication"] + loading + 1e-5


def test_what_the_chapter_says_of_the_gpu_traces():
    assert profiling_gpu.diagnosis() == "A loader, B nothing, C launches, D launches and messages"
    seconds = {letter: simple.gpu_seconds(simple.load_events(profiling_gpu.path_of(name)))
               for letter, name in profiling_gpu.STEPS.items()}  # fmt: skip
    assert [round(one["step"] * 1e3) for one in seconds.values()] == [177, 96, 220, 346]
    assert round(seconds["C"]["launch delay"] * 1e6) == 12 and round(seconds["B"]["launch delay"] * 1e3) == 80
    idle = {letter: profiling_gpu.shares(name)["idle"] for letter, name in profiling_gpu.STEPS.items()}
    assert round(100 * idle["C"]) == 77 and idle["B"] < 0.02
    workers = simple.gpu_seconds(simple.load_events(profiling_gpu.path_of("resnet50_v100_kineto_4_workers")))
    assert round(workers["step"] * 1e3) == 127
    events = simple.load_events(profiling_gpu.path_of(profiling_gpu.STEPS["D"]))
    assert sum(map(simple.is_message, events)) == 404
    assert explain(read(profiling_gpu.path_of("gradients_2v100_hta"))).hidden == 0
    assert sum(event["cat"] in simple.GPU for event in events) == 4458


def test_item_takes_the_lead_and_a_graph_gives_it():
    scene, left = profiling_gpu.lead_scene()
    assert left == "almost nothing" and scene.items
    assert profiling_gpu.launches_of_graphs() == "2 graph launches start 820 of the step's 1,748 kernels and copies."
    texts = [profiling_gpu.lead_text(seconds) for seconds in (1e-5, 1e-3, 0.08)]
    assert texts == ["about 10 µs", "about 1 ms", "about 80 ms"]
    assert profiling_gpu.gpu_steps_scene().summary
