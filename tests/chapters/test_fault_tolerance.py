"""Whatever happens to the newest checkpoint is told in a sentence, the older one is offered; torch's own is equal."""

import re

from helpers.chapters.fault_tolerance import (
    DAMAGED,
    KILLED,
    REFUSED,
    compare_with_torch,
    damage_checkpoints,
    what_finds_a_flipped_bit,
)

SAID = {
    **dict.fromkeys(KILLED, "step_00020 is being written, or its save was interrupted"),
    "no_space": r"rank 1 could not write .*No space left on device",
    "small_files": r"rank 1 could not write .*File too large",
    "slow_rank": "rank 1 did not write its part of step_00020 within 0.5 s",
    "flipped": "rank_1.pt is damaged: .*the checksum of",
    "half": "rank_1.pt has .* bytes: it was not written completely",
    "no_file": "rank_0.pt is missing",
    "flipped_manifest": "manifest.json cannot be read",
    "no_manifest": "there is no manifest.json",
}


def test_every_damage_is_named_and_the_older_checkpoint_is_offered():
    assert SAID.keys() == {*KILLED, *REFUSED, *DAMAGED}
    for (name, says), row in zip(SAID.items(), damage_checkpoints(*SAID), strict=True):
        assert re.search(says, row.error) and row.offered == "step_00010", (name, row)


def test_torchs_own_checkpoint_holds_the_same_and_is_cut_anew_the_same(ranks):
    row = compare_with_torch(ranks, repeats=1)
    assert row.equal.startswith("equal:") and row.our_stall < row.ours and row.torch_stall < row.torch


def test_torch_load_reads_a_flipped_bit_without_an_error_so_the_message_decides():
    assert what_finds_a_flipped_bit("rank_1.pt is damaged: its SHA-256 is not the one") == "only a checksum of the file"
    assert what_finds_a_flipped_bit("rank_1.pt has 5 of 9 bytes") == "the size of the file"
