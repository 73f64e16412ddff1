"""Whatever lies in a file of a trace: what can be read is read, and what is missing is said."""

from __future__ import annotations

import gc
import gzip
import json
import shutil
import zipfile
import zlib
from contextlib import suppress

import pytest

from helpers.__main__ import main
from helpers.commands.traces import explain, read, report_lines


@pytest.fixture
def good(made):
    """Two ranks, twelve steps; rank 1 loads for long."""
    return made(world=2, steps=12, extra=lambda rank, step, part: 0.02 * (rank == 1 and part == "data"))


def file_of(folder, rank):
    return next(folder.glob(f"worker{rank}.*"))


def notes_of(run):
    return "\n".join(map(str, run.notes))


def rewrite(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def rewrite_all(folder, change):
    for rank in (0, 1):
        rewrite(file_of(folder, rank), change)


def test_a_whole_run_has_nothing_to_note(good):
    run = read(good)
    assert run.ranks == (0, 1) == run.timeline.ranks and run.notes == () and len(run.steps[0]) == 12


def test_a_file_without_a_rank_takes_the_lowest_free_one_and_the_note_names_it(good):
    path = file_of(good, 0)
    rewrite(path, lambda data: data["distributedInfo"].pop("rank"))
    path.rename(good / "mine.pt.trace.json")
    run = read(good)
    assert run.ranks == (0, 1) and "taken for rank 0" in notes_of(run)


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_that_was_cut_off_is_read_up_to_there(good, packed):
    path = file_of(good, 0)
    whole = gzip.compress(path.read_bytes()) if packed else path.read_bytes()
    path.unlink()
    (good / ("worker0.pt.trace.json" + ".gz" * packed)).write_bytes(whole[: len(whole) * 6 // 10])
    run = read(good)
    assert "worker0.pt.trace.json" in notes_of(run) and "was cut off" in notes_of(run)
    assert 2 <= len(run.steps[0]) < len(run.steps[1]) == 12
    assert explain(run).straggler.cause == "data"


def test_a_packed_trace_that_is_damaged_is_read_up_to_there(made):
    folder = made(world=2, steps=60, noise=0.001)
    path = file_of(folder, 0)
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(path.read_bytes()[:150_000]) + packer.flush(zlib.Z_FULL_FLUSH)
    path.unlink()
    (folder / "worker0.pt.trace.json.gz").write_bytes(packed + b"\xff no kind of block begins like this")
    run = read(folder)
    assert "worker0.pt.trace.json.gz was cut off" in notes_of(run) and 20 <= len(run.steps[0]) < 60


def test_a_packed_trace_and_an_archive_are_read_as_the_folder_is(good, tmp_path):
    seconds = explain(read(good)).seconds
    with zipfile.ZipFile(tmp_path / "run.zip", "w") as archive:
        for path in good.iterdir():
            archive.write(path, f"logs/{path.name}")
    for path in list(good.iterdir()):
        (good / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert explain(read(good)).seconds == explain(read(tmp_path / "run.zip")).seconds == seconds


@pytest.mark.parametrize("junk", [b"\x01", b"\xff", "\u9605".encode()], ids=repr)
def test_characters_that_are_no_json_cost_nothing(good, junk):
    seconds = explain(read(good)).parts
    for rank in (0, 1):
        path = file_of(good, rank)
        path.write_bytes(path.read_bytes().replace(b"aten::linear", b"aten::linear" + junk))
    explanation = explain(read(good))
    names = {operator.name for operator in explanation.operators}
    assert explanation.parts == seconds and "aten::linear" + junk.decode(errors="replace") in names


def test_another_version_is_said_and_read(good):
    def older(data):
        data["schemaVersion"] = 7
        del data["distributedInfo"], data["baseTimeNanoseconds"]

    rewrite_all(good, older)
    for rank in (0, 1):
        file_of(good, rank).rename(good / f"rank-{rank}.json")
    run = read(good)
    assert "has schema version 7" in notes_of(run) and run.ranks == (0, 1) and explain(run).straggler.rank == 1


def test_events_alone_are_a_trace_too(good):
    path = file_of(good, 0)
    path.write_text(json.dumps(json.loads(path.read_text())["traceEvents"]))
    run = read(path)
    assert run.ranks == (0,) and len(explain(run).steps) == 12


def test_of_one_rank_nobody_can_tell_who_waited(good):
    run = read(file_of(good, 1))
    explanation = explain(run)
    assert "rank 1 of 2" in notes_of(run) and explanation.straggler is None and explanation.ranks == (1,)
    assert explanation.parts["waiting"] == 0 and explanation.parts["communication"] > 0
    assert not any("others wait" in line for line in report_lines(explanation))


def test_without_steps_the_whole_trace_is_one(good):
    def nameless(data):
        data["traceEvents"] = [one for one in data["traceEvents"] if "ProfilerStep" not in one["name"]]

    rewrite_all(good, nameless)
    run = read(good)
    explanation = explain(run)
    assert "No ProfilerStep on rank 0 and 1" in notes_of(run) and explanation.steps == (-1,)
    assert explanation.parts["data"] == pytest.approx(12 * 0.015) and "no steps named" in report_lines(explanation)[0]


def test_ranks_without_a_name_are_numbered_and_this_is_said(good):
    rewrite_all(good, lambda data: data.pop("distributedInfo"))
    assert "it is taken for rank 0" in notes_of(read(file_of(good, 1)))
    run = read(good)
    assert run.ranks == (0, 1) and "does not say its rank" in notes_of(run)


def test_windows_of_other_steps_are_one_track(good):
    """`repeat=2` writes two files a rank."""
    for rank in (0, 1):
        first = file_of(good, rank)
        second = good / f"worker{rank}.1999999999999999999.pt.trace.json"
        shutil.copy(first, second)

        def later(data):
            for one in data["traceEvents"]:
                one["ts"] += 6e7
                if one["name"].startswith("ProfilerStep#"):
                    one["name"] = f"ProfilerStep#{int(one['name'][13:]) + 100}"

        rewrite(second, later)
    run = read(good)
    assert run.notes == () and len(run.steps[1]) == 24 and explain(run).straggler.share > 0.9


def test_machines_that_met_in_no_collective_keep_their_clocks(made):
    folder = made(world=2, steps=4, one_host=False, clocks={1: (0.050, 0.0)})

    def silent(data):
        data["traceEvents"] = [one for one in data["traceEvents"] if "all" not in one["name"]]

    rewrite_all(folder, silent)
    run = read(folder)
    assert "Rank 1 met no other rank in a collective" in notes_of(run) and run.clocks[1].offset == 0
    assert explain(run).parts["waiting"] == 0 and len(explain(run).steps) == 4


@pytest.mark.parametrize("junk", [None, "x", -1, 1e30, [None], {}, float("nan"), "nothing"], ids=str)
def test_a_field_of_another_kind_costs_its_event_at_most(made, junk):
    """Every field of every kind of event, as junk or not there."""
    folder = made(world=2, steps=2)
    whole = json.loads(file_of(folder, 0).read_text())
    kinds = {one["name"].partition("#")[0]: one for one in whole["traceEvents"]}.values()
    places = [(one, key) for one in kinds for key in one] + [(one["args"], key) for one in kinds for key in one["args"]]
    places += [(whole["distributedInfo"], key) for key in whole["distributedInfo"]] + [(whole, "baseTimeNanoseconds")]
    for fields, key in places:
        kept = fields.pop(key)
        fields.update({} if junk == "nothing" else {key: junk})
        file_of(folder, 0).write_text(json.dumps(whole))
        fields[key] = kept
        with suppress(ValueError):  # a sentence: without its time a step is none, and then none is common
            assert explain(read(folder)).seconds >= 0


def test_groups_that_gloo_does_not_name_are_not_guessed(good):
    """With two groups of other ranks nobody can tell whose message it was."""

    def grouped(data):
        data["distributedInfo"]["pg_config"].append({"pg_name": "1", "ranks": [0, 1, 2, 3]})

    rewrite_all(good, grouped)
    run = read(good)
    assert "the other ranks' part was not found" in notes_of(run) and explain(run).parts["waiting"] == 0


def test_ranks_without_a_step_in_common_are_refused(good):
    def other(data):
        for one in data["traceEvents"]:
            one["name"] = one["name"].replace("ProfilerStep#", "ProfilerStep#9")

    rewrite(file_of(good, 1), other)
    with pytest.raises(ValueError, match="no step in common"):
        explain(read(good))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.json", b"", "a.json is no trace: it is empty or cannot be unpacked"),
        ("a.json", b"hello", "a.json is no trace: it is not JSON .line 1.*expected a .json or .json.gz"),
        ("a.json", b'{"snapshot": 3}', "a.json is JSON without `traceEvents`"),
        ("a.json", b'{"traceEvents": []}', "holds no operator and no kernel"),
        ("a.json", b'{"traceEvents": [{"ph": "M", "name": "process_name", "ts": 1}]}', "holds no operator"),
        ("a.zip", b"PK\x03\x04 and then nothing", "a zip archive that was cut off"),
        ("a.json.gz", b"\x1f\x8b and then no gzip", "a.json.gz is no trace: it is empty or cannot be unpacked"),
        ("a.json.gz", gzip.compress(b"", mtime=0), "a.json.gz is no trace: it is empty or cannot be unpacked"),
        ("notes.txt", b"", "is no trace"),
    ],
)
def test_what_is_no_trace_gets_a_sentence(tmp_path, capsys, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path / name)
    assert main(["explain", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.startswith("Nothing was explained: ")


def test_a_packed_file_that_does_not_unpack_gets_a_sentence(good, tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "run.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(file_of(good, 0), "rank0.json")
    whole = bytearray((tmp_path / "run.zip").read_bytes())
    whole[200:260] = bytes(60)
    (tmp_path / "run.zip").write_bytes(whole)
    assert main(["explain", str(tmp_path / "run.zip")]) == 2
    assert "rank0.json cannot be unpacked" in capsys.readouterr().err


def test_a_file_that_is_no_trace_is_left_out_of_a_folder_that_has_some(good):
    (good / "worker2.pt.trace.json").write_text("")
    run = read(good)
    assert run.ranks == (0, 1) and "Left out: worker2.pt.trace.json is no trace" in notes_of(run)


def test_the_name_of_its_folder_tells_a_files_rank(good, tmp_path):
    rewrite_all(good, lambda data: data.pop("distributedInfo"))
    for rank in (0, 1):
        (tmp_path / "log" / f"rank{rank}").mkdir(parents=True)
        file_of(good, rank).rename(tmp_path / "log" / f"rank{rank}" / "trace.json")
    run = read(tmp_path / "log")
    assert run.ranks == (0, 1) and run.notes == () and explain(run).straggler.rank == 1


def test_a_trace_of_torch_1_8_is_read_like_one_of_today(good):
    """Its categories had other names, and labels were operators."""
    old = {"cpu_op": "Operator", "kernel": "Kernel", "cuda_runtime": "Runtime"}
    parts = explain(read(good)).parts

    def older(data):
        for event in data["traceEvents"]:
            if event["name"].startswith(("ProfilerStep#", "enumerate(", "Optimizer.")):
                event["cat"] = "Operator"
            event["cat"] = old.get(event["cat"], event["cat"])

    rewrite_all(good, older)
    assert explain(read(good)).parts == pytest.approx(parts)


def test_the_collector_of_circles_runs_again_after_a_trace_that_is_none(tmp_path):
    with pytest.raises(ValueError):
        read(tmp_path / "nothing")
    assert gc.isenabled()


def test_a_folder_or_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="holds no trace; expected files such as"):
        read(tmp_path)
    with pytest.raises(ValueError, match="there is no such file or folder"):
        read(tmp_path / "trace.json")
