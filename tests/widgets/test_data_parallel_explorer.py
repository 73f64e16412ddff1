"""The explorers of one data-parallel step: what each dial changes, and runs on ranks."""

from dataclasses import replace

import pytest

from helpers.draw import Rect
from helpers.draw.scene import Label
from helpers.predict.time.data_parallel import simulate_ddp_step
from helpers.records import Timeline
from helpers.widgets import OverlapExplorer
from helpers.widgets.data_parallel_explorer import SMALL_GPT, DataParallelExplorer


@pytest.fixture
def explorer():
    return DataParallelExplorer()


def test_more_devices_help_until_the_master_is_too_slow(explorer):
    gains = [explorer.step(1).duration / explorer.step(n).duration for n in (1, 2, 4, 8)]
    assert gains[0] == 1 < gains[1] < gains[2] > gains[3]


def test_one_device_has_no_link_to_wait_for(explorer):
    explorer.devices.value = 1
    assert explorer.sentence.startswith("1.00 times as fast as one device. The master's link is busy for 0 s")


def test_the_picture_names_devices_and_no_ranks(explorer):
    told = {item.text for item in explorer.scene.items if isinstance(item, Label)}
    assert told >= {"master", "device 1", "device 2", "device 3"} and not any("rank" in text for text in told)


def test_the_table_accounts_for_the_whole_step(explorer):
    explorer.devices.value = 1
    (alone,) = explorer.rows
    assert alone["device"] == "0 (master)"
    assert (alone["sends or receives"], alone["waits"]) == ("0 s", "0 s")
    explorer.devices.value = 4
    assert [row["device"] for row in explorer.rows] == ["0 (master)", "1", "2", "3"]
    busiest, *others = (row["sends or receives"] for row in explorer.rows)
    assert busiest == "22.1 ms" and busiest not in others


def exposed(explorer):
    return explorer.timeline.exposed_communication(0)


def test_the_model_is_the_one_of_the_chapter():
    assert SMALL_GPT.num_params == 10_698_240


def test_a_bucket_in_the_middle_hides_most():
    """Slivers pay latency, one late block hides nothing."""
    explorer, seen = OverlapExplorer(), {}
    for bucket in ("one weight matrix", "5 MiB", "everything"):
        explorer.bucket.value = bucket
        seen[bucket] = exposed(explorer)
    assert seen["5 MiB"] < seen["one weight matrix"] < seen["everything"]
    explorer.bucket.value = "everything"
    messages = [span for span in explorer.timeline.for_rank(0).spans if span.lane == "communication"]
    assert len(messages) == 1 and seen["everything"] == pytest.approx(messages[0].duration)


@pytest.mark.parametrize(
    ("dial", "value", "grows"),
    [("bandwidth", 100, False), ("latency", 3000, True), ("ranks", 64, True), ("compute", 1, False)],
)
def test_every_dial_moves_the_exposed_time(dial, value, grows):
    explorer = OverlapExplorer()
    before, html = exposed(explorer), explorer.widget.html.value
    getattr(explorer, dial).value = value
    assert (exposed(explorer) > before) == grows and exposed(explorer) != before
    assert explorer.widget.html.value != html


def test_the_sentence_says_what_is_exposed():
    explorer = OverlapExplorer()
    explorer.bucket.value = "everything"
    assert explorer.sentence.endswith("1 message for 42.8 MB of gradients.")
    assert explorer.sentence.startswith("exposed communication 53.2 ms of 158 ms, ")
    explorer.ranks.value = 64
    assert explorer.sentence.endswith("All 64 ranks do the same; 4 are shown.")


def test_the_axis_stays_while_the_bucket_moves():
    explorer = OverlapExplorer()
    ends = set()
    for bucket in ("one weight matrix", "25 MiB"):
        explorer.bucket.value = bucket
        bars = (item for item in explorer.scene.items if isinstance(item, Rect))
        ends.add(*(round(bar.width, 6) for bar in bars if bar.tooltip.startswith("rank 0 · forward")))
    assert len(ends) == 1


class Refuses(RuntimeError):
    """As RankError: what it says stands in its text, in several lines."""


def played(backward, *, link, world_size, bucket_cap_mb, first_bucket_mb):
    """A run that takes no ranks: what is predicted, half as fast."""
    options = {"link": link, "world_size": world_size, "bucket_cap_mb": bucket_cap_mb}
    step = simulate_ddp_step(backward, first_bucket_mb=first_bucket_mb, **options)
    spans = [replace(span, start=2 * span.start, end=2 * span.end) for span in step.spans]
    return Timeline(spans=spans, source="emulated")


def panels(explorer):
    texts = [label.text for label in explorer.scene.labels()]
    return [text for text in texts if text in ("predicted", "emulated on this machine", "recorded on this machine")]


def test_without_run_there_is_no_button_and_nothing_to_run():
    explorer = OverlapExplorer()
    assert explorer.button not in explorer.controls
    with pytest.raises(ValueError, match="nothing to run; give it run="):
        explorer.run_now()


def test_the_button_runs_the_dials_as_they_stand_and_the_run_stands_below():
    asked = []
    explorer = OverlapExplorer(run=lambda backward, **options: asked.append(options) or played(backward, **options))
    assert panels(explorer) == ["predicted"] and asked == []
    explorer.bandwidth.value, explorer.bucket.value, explorer.ranks.value = 25, "5 MiB", 2
    explorer.button.click()
    (options,) = asked
    assert options["link"].bandwidth == 25e9 / 8 and options["world_size"] == 2
    assert (options["bucket_cap_mb"], options["first_bucket_mb"]) == (5, 1)
    assert panels(explorer) == ["predicted", "emulated on this machine"]
    assert "emulated on this machine" in explorer.widget.html.value


def test_the_sentence_and_the_table_compare():
    explorer = OverlapExplorer(run=played).run_now()
    assert explorer.sentence.endswith(" Exposed: predicted 32.4 ms, emulated 64.8 ms.")
    table = {row["one step"]: (row["predicted"], row["emulated"]) for row in explorer.rows}
    assert table["exposed communication"] == ("32.4 ms", "64.8 ms")
    assert table["messages"] == ("3", "3") and table["payload"] == ("42.8 MB", "42.8 MB")
    assert "64.8 ms" in explorer.text and "64.8 ms" in explorer.widget.table.value


def test_a_run_belongs_to_its_setting():
    explorer = OverlapExplorer(run=played).run_now()
    explorer.bucket.value = "5 MiB"
    assert panels(explorer) == ["predicted"] and "Exposed:" not in explorer.sentence
    explorer.bucket.value = "25 MiB"
    assert panels(explorer) == ["predicted", "emulated on this machine"]


def test_the_button_says_that_it_runs_and_cannot_be_pressed_meanwhile():
    seen = []
    explorer = OverlapExplorer(
        run=lambda *args, **options: seen.append((explorer.button.disabled, explorer.button.description))
    )
    explorer.button.click()
    assert seen == [(True, "Running …")]
    assert (explorer.button.disabled, explorer.button.description) == (False, "Run it")


def refuse(*args, **options):
    raise Refuses("rank 1 raised <x>\nranks 0, 2, 3 wait in all_reduce")


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (refuse, "rank 1 raised &lt;x&gt;\nranks 0, 2, 3 wait in all_reduce</div>"),
        (lambda *args, **options: 1 / 0, "division by zero"),
        (lambda *args, **options: None, "run returned a NoneType; it must return the Timeline"),
        (lambda *args, **options: Timeline(spans=(), source="emulated"), "run returned a Timeline without spans"),
    ],
)
def test_what_goes_wrong_in_a_run_is_told_and_the_prediction_stays(run, says):
    explorer = OverlapExplorer(run=run).run_now()
    notice = explorer.widget.widget_of(explorer.notice)
    assert says in notice.value and "white-space:pre-wrap" in notice.value
    assert 'role="alert"' in notice.value and explorer.failure in explorer.text
    assert panels(explorer) == ["predicted"] and not explorer.button.disabled
    explorer.bucket.value = "1 MiB"
    assert notice.value == ""


def test_of_many_ranks_that_ran_four_are_shown():
    explorer = OverlapExplorer(run=played)
    explorer.ranks.value = 8
    explorer.run_now()
    texts = [label.text for label in explorer.scene.labels()]
    assert explorer.emulated.num_ranks == 8 and texts.count("rank 3") == 2 and "rank 4" not in texts


def test_the_table_stands_without_a_run():
    explorer = OverlapExplorer()
    assert [list(row) for row in explorer.rows] == [["one step", "predicted"]] * 6
    explorer.bandwidth.value = 1
    hidden = {row["one step"]: row["predicted"] for row in explorer.rows}["hidden behind compute"]
    assert hidden == f"{1 - exposed(explorer) / explorer.timeline.busy(0, 'communication'):.0%}"
