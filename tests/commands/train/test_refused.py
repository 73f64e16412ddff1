"""Bad input is a sentence and exit code 2, before a rank starts; a damaged checkpoint as soon as they have read it."""

from __future__ import annotations

import json

import pytest

from helpers.commands.train import cli
from helpers.commands.train.options import parse_options
from helpers.ranks import RankError
from helpers.ranks.processes.spec import torchrun_variables


def refused(capsys, line: str) -> str:
    assert cli.main(line.split()) == cli.REFUSED
    said = capsys.readouterr()
    assert not said.out and "usage" not in said.err, "something has started, or there is more than a sentence"
    return said.err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--plan dp=2,xp=2", "'xp' is not an axis; give dp, pp, cp, ep and tp"),
        ("--plan dp=2,zero=1", "--zero is an option of its own"),
        ("--plan dp", "give each axis once, with its number of ranks"),
        ("--plan dp=2,dp=2", "give each axis once"),
        ("--plan dp=0", "dp is 0, but it must be a whole number of at least 1"),
        ("--plan dp=2,ep=2", "ep=2 splits the experts of each layer, and this GPT has none"),
        ("--plan dp=3,ep=3 --experts 8 --batch 15", "use ep=1, or num_experts=9"),
        ("--plan dp=2,ep=3 --experts 9", "ep=3 does not divide dp * cp=2"),
        ("--plan dp=2,tp=2 --experts 8 --sequence-parallel", "use sequence_parallel=False"),
        ("--plan dp=2 --experts 4 --top-k 5", "a token chooses at least one expert, and at most all of them"),
        ("--plan dp=2 --experts -1", "--experts -1: expected 0, or a number of experts"),
        ("--plan cp=2 --dropout 0.1", "use dropout=0.0, or cp=1 and dp=2"),
        ("--plan cp=3,tp=2 --sequence-parallel", "leave sequence_parallel out, or give sequences of a multiple of"),
        ("--plan cp=128", "use cp=64"),
        ("--plan cp=8,tp=2 --cp-method all_to_all", "use cp_method='ring'"),
        ("--plan dp=2 --cp-method all_gather", "leave it out, or set cp above 1"),
        ("--plan dp=2,pp=2 --zero 3", "The nearest plans that work are zero=1 with pp=2"),
        ("--plan pp=8", "6 layers cannot be divided into 8 stages"),
        ("--plan tp=3", "8 heads cannot be shared equally by 3 ranks, since a head stays whole"),
        ("--plan tp=3", "the nearest that works is tp 2 or 4"),
        ("--plan tp=16", "the nearest that works is tp 8"),
        ("--plan dp=64", "= 64 does not divide it; the smallest that works is 64"),
        ("--plan dp=1 --schedule interleaved", "--schedule interleaved needs pp above 1"),
        ("--plan dp=1 --chunks 2", "--chunks 2 needs pp above 1"),
        ("--plan dp=3", "3 * 1 = 3 does not divide it; the nearest that work are 15 and 18"),
        ("--plan pp=2 --schedule interleaved --microbatches 3 --batch 18", "not a whole number of rounds of 2"),
        ("--steps 0", "--steps 0: expected 1 or more"),
        ("--steps abc", "--steps: invalid int value: 'abc'; --help shows all options"),
        ("--zero 7", "--zero: invalid choice: 7"),
        ("--depth 3", "unrecognized arguments: --depth 3"),
        ("--lr nan", "expected a finite number above 0"),
        ("--lr inf", "expected a finite number above 0"),
        ("--dropout 1", "--dropout 1.0: expected 0 or more and below 1"),
        ("--chaos 1.5", "--chaos 1.5: expected a probability per step from 0 to 1"),
        ("--grace 0", "--grace 0: expected the seconds that are left after SIGTERM"),
        ("--go-on", "give --save, and no --resume"),
        ("--resume nowhere", "there is no such folder; give a run"),
        ("--plan dp=100000 --batch 100000", "ranks need about"),
    ],
)
def test_what_does_not_go_together_is_a_sentence(capsys, line, says):
    assert says in refused(capsys, line)


def set_place(monkeypatch, rank, world_size):
    """As in a process that torchrun has started."""
    for name, value in torchrun_variables(rank, world_size).items():
        monkeypatch.setenv(name, value)


def test_a_plan_for_other_ranks_than_torchrun_started(capsys, monkeypatch):
    set_place(monkeypatch, rank=0, world_size=4)
    assert "for 8 ranks, but torchrun started 4" in refused(capsys, "--plan dp=2,tp=2,pp=2")
    assert parse_options([]).plan.dp == 4, "without a plan all of them are copies"


def test_ranks_that_cannot_start_say_why(capsys, monkeypatch, tmp_path):
    def no_room(*_, **__):
        raise RankError("rank 0 of 1 did not start: no room for a board")

    monkeypatch.setattr("helpers.ranks.Ranks", no_room)
    assert "no room for a board" in refused(capsys, f"--size tiny --plan dp=1 --save {tmp_path / 'run'}")


def test_chaos_is_not_for_torchruns_ranks(capsys, monkeypatch):
    set_place(monkeypatch, rank=0, world_size=4)
    assert "no process would be left to do this" in refused(capsys, "--chaos 0.1")


def test_torchruns_report_ends_with_the_sentence(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    said = refused(capsys, "--plan xp=2")
    assert json.loads((tmp_path / "error.json").read_text())["message"]["message"] == said.rstrip("\n")


@pytest.fixture
def saved(train, ranks, tmp_path):
    """One step, which is weighed and clocked too."""
    code, said = train(ranks[:2], "--plan dp=2 --zero 1 --steps 1 --batch 8 --save run")
    assert code == 0 and "at its peak, in step 1" in said and "Timeline of step 1" in said and "to the byte" in said
    return tmp_path / "run"


def test_a_checkpoint_that_does_not_fit(capsys, saved):
    assert "is at step 1 already: give --steps above 1" in refused(capsys, "--resume run")
    another = refused(capsys, "--resume run/step_00001 --size small --steps 2")
    assert "of another model: its token_embedding.weight is (68, 32)" in another
    assert "run holds a checkpoint of step 1 already" in refused(capsys, "--save run")
    assert "it holds no complete checkpoint" in refused(capsys, "--resume .")
    for damaged in ("{", "[]"):
        (saved / "train.json").write_text(damaged)
        assert "train.json cannot be read" in refused(capsys, "--resume run --steps 2")


def test_a_folder_that_cannot_be_one(train, ranks, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="--save .*file: File exists; give a folder that can be written"):
        train(ranks[:1], "--plan dp=1 --steps 1 --save file")


def test_a_damaged_file_is_named_by_the_ranks(train, ranks, saved):
    file = saved / "step_00001" / "rank_1.pt"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match="rank_1.pt is damaged"):
        train(ranks[:2], "--resume run --steps 2")


def test_a_resumed_run_keeps_its_options_and_another_plan_has_its_own(saved):
    kept, other = parse_options("--resume run".split()), parse_options("--resume run --plan tp=2 --lr 0.5".split())
    assert (kept.plan.dp, kept.plan.zero, kept.batch, kept.new_lr) == (2, 1, 8, None)
    assert (other.plan.tp, other.plan.dp, other.plan.zero, other.batch, other.new_lr) == (2, 1, 0, 8, 0.5)
    assert json.loads((saved / "train.json").read_text())["size"] == kept.size == "tiny"
