"""torchft, where it is installed: a copy dies, the other goes on, a fresh one is healed: to the same weights as ours.

pip install --no-deps torchft, and opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http, which it imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.elastic.healing import TOLERANCES, ReplicaSettings, train_replicas, trained_alone
from helpers.elastic.lighthouse import next_round
from helpers.observe.equality import assert_equal

pytest.importorskip("torchft", reason="torchft is not installed: see the top of this file")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
WORKER = Path(__file__).with_name("torchft_copy.py")
DIES, BACK = 2, 4


class Theirs:
    def __init__(self, number: int, life: str, lighthouse: str, folder: Path, dies_in: int | str = "never"):
        self.file = folder / f"{life}.pt"
        command = [sys.executable, str(WORKER), str(number), life, lighthouse, str(self.file), str(dies_in)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def is_ready(self) -> bool:
        return self.process.stdout.readline() == "ready\n"

    def ask(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def said(self) -> dict | None:
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def weights(self) -> dict[str, torch.Tensor]:
        self.process.stdin.close()
        assert self.process.wait(30) == 0
        return torch.load(self.file)


def test_its_copies_and_ours_come_to_the_weights_of_one_process(tmp_path):
    from torchft.coordination import LighthouseServer

    house = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=2000, heartbeat_timeout_ms=1000)
    copies = [Theirs(0, "0.0", house.address(), tmp_path), Theirs(1, "1.0", house.address(), tmp_path, DIES)]
    done, together = [], 0  # what copy 0 tells of each step; of how many the second life of copy 1
    try:
        assert all(copy.is_ready() for copy in copies)
        copies[1].ask()
        while together < 3:
            copies[0].ask()
            told = copies[0].said()
            done += [told] if told["report"] else []
            if told["members"] == [0, 1]:  # else copy 1 still waits for a quorum
                if said := copies[1].said():
                    copies[1].ask()
                    together += bool(copies[1].file.name == "1.1.pt" and said["report"])
                else:
                    copies.pop()
            elif len(copies) == 1 and len(done) == BACK:
                copies.append(Theirs(1, "1.1", house.address(), tmp_path))
                assert copies[1].is_ready()
                copies[1].ask()
            assert len(done) < 20, done
        copies[0].ask()  # the step that copy 1 was asked for already
        done.append(copies[0].said())
        found = [copy.weights() for copy in copies]
    finally:
        for copy in copies:
            copy.process.kill()
        house.shutdown()
    rounds = [next_round(dict.fromkeys(one["members"], one["step"]), None) for one in done]
    rounds = [replace(one, done=one.members) for one in rounds]
    members = [len(one.members) for one in rounds]
    back = members.index(2, DIES + 1)
    assert members == [2] * DIES + [1] * (back - DIES) + [2] * (len(members) - back)
    _, weights = trained_alone(rounds, ReplicaSettings(copies=2, steps=len(rounds)))
    assert assert_equal(weights, found, rtol=1e-10, atol=TOLERANCES).startswith("equal: 37 tensors x 2 ranks")
    ours = train_replicas(copies=2, steps=len(rounds), kill={1: DIES}, back={1: back})
    assert ours.check_equal() and [len(one.members) for one in ours.rounds if one.done] == members
    assert ours.losses == pytest.approx([one["report"]["loss"] for one in done], rel=1e-10)
