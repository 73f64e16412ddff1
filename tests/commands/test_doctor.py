"""The doctor: each check on a machine that is well and on one that is not, and the four ranks for real."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from helpers.commands import doctor


def cgroup(root, membership, files):
    """A fake /proc and /sys under `root`: this process's cgroup lines, and the limit files."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(membership)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    "membership, files, cores",
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "100000 100000\n"}, 1),
        ("4:cpu,cpuacct:/d\n", {"cpu/d/cpu.cfs_quota_us": "50000\n", "cpu/d/cpu.cfs_period_us": "100000\n"}, 0.5),
        ("4:cpu,cpuacct:/d\n", {"cpu/d/cpu.cfs_quota_us": "-1\n", "cpu/d/cpu.cfs_period_us": "100000\n"}, 16),
        ("3:memory:/m\n", {"m/cpu.max": "100000 100000\n"}, 16),
        ("0::/gone\n", {"cpu.max": "300000 100000\n"}, 3),
    ],
)
def test_cores_follow_the_tightest_cgroup(tmp_path, membership, files, cores):
    assert doctor.usable_cores(cgroup(tmp_path, membership, files), host=16) == cores


def test_cores_without_cgroups_are_the_affinity(tmp_path):
    assert doctor.usable_cores(tmp_path, host=8) == 8
    assert doctor.usable_cores() >= 0.1


@pytest.mark.parametrize(
    "finding",
    [
        doctor.check_python((3, 11, 7)),
        doctor.check_system("linux", "6.1.0"),
        doctor.check_system("darwin", "24"),
        doctor.check_torch("2.13.0+cpu"),
        doctor.check_leftovers("2.13.0+cpu", ["torch", "numpy"]),
        doctor.check_leftovers("2.13.0", ["torch", "nvidia-nccl-cu13"]),
        doctor.check_devices([], None),
        doctor.check_gpu_build(["H200"], 1),
        doctor.check_backend(0),
        doctor.check_cores(2, 64),
        doctor.check_memory(8_000_000_000),
        doctor.check_memory(3_000_000_000, 4_000_000_000),
        doctor.check_shared_memory(num_bytes=2**30),
        doctor.judge_ranks("4 ranks", [6.0] * 4, 2.0),
    ],
    ids=lambda finding: finding.name,
)
def test_a_well_machine_gets_no_advice(finding):
    assert (finding.mark, finding.advice) == ("ok", "")


@pytest.mark.parametrize(
    "finding, fatal, words",
    [
        (doctor.check_python((3, 10, 1)), True, "3.11"),
        (doctor.check_system("win32", ""), True, "WSL2"),
        (doctor.check_torch(None), True, "make course"),
        (doctor.check_torch("2.4.1"), True, "2.11"),
        (doctor.check_torch("2.14.0+cpu"), False, "private functions of torch"),
        (doctor.check_leftovers("2.13.0+cpu", ["nvidia-nccl-cu13"]), False, "Remove .venv"),
        (doctor.check_gpu_build(["H200"], 0), False, "TORCH=cuda"),
        (doctor.check_cores(0.5, 64), False, "Ranks(2)"),
        (doctor.check_memory(1_000_000_000), False, "1.5 GB"),
        (doctor.check_memory(600_000_000, 1_000_000_000), False, "need up to 1.5 GB, and 3.4 GB in chapter 03"),
        (doctor.check_shared_memory(num_bytes=64 * 2**20), False, "--shm-size"),
        (doctor.judge_ranks("4 ranks", [6.0] * 4, 40.0), False, "busy"),
        (doctor.judge_ranks("4 ranks", [6.0, 6.0, 6.0, 3.0], 2.0), True, "issue"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_each_thing_that_is_wrong_gets_one_sentence(finding, fatal, words):
    assert words in finding.advice
    assert finding.advice.endswith(".")
    assert finding.fatal == fatal


def test_the_doctor_and_the_package_agree_on_the_tested_torch():
    from tests.test_environment import ROOT, Requirement, tomllib

    texts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (torch,) = (one for one in map(Requirement, texts) if one.name == "torch")
    for version in ("2.10.1", "2.11.0", "2.13.9", "2.14.0"):
        assert (version in torch.specifier) == (doctor.check_torch(version).mark == "ok"), version


def test_a_containers_limit_stands_beside_what_is_available():
    said = doctor.check_memory(600_000_000, 1_000_000_000)
    assert said.value == "0.6 GB available of the 1.0 GB that this container may use"


def test_small_disk_is_noted(tmp_path):
    assert doctor.check_disk(tmp_path, num_bytes=10**8).mark == "note"
    assert doctor.check_disk(tmp_path, num_bytes=10**10).mark == "ok"


def test_a_machine_that_does_not_know_its_own_name_is_noted():
    def unknown(name):
        raise OSError(name)

    assert doctor.check_ports(unknown).mark == "note"


def test_gpus_pinned_by_a_teacher_are_shown():
    assert "CUDA_VISIBLE_DEVICES=3" in doctor.check_devices(["H200"], "3").value


@pytest.mark.parametrize(
    "gpus, words", [(0, "gloo on CPU"), (1, "Ranks(1) would use NCCL"), (8, "NCCL, one GPU per rank")]
)
def test_the_backend_follows_the_gpus(gpus, words):
    assert words in doctor.check_backend(gpus).value


def test_ranks_that_cannot_start_are_reported_and_not_raised(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no process left")

    monkeypatch.setattr("helpers.ranks.Ranks", refuse)
    finding = doctor.check_ranks()
    assert finding.fatal
    assert "no process left" in finding.value


def test_the_report_puts_advice_below_its_line():
    found = [doctor.check_python((3, 10)), doctor.check_torch("2.13.0")]
    lines = doctor.report(found).splitlines()
    assert lines[0].startswith("wrong  Python")
    assert lines[1].strip() == found[0].advice
    assert lines[2].startswith("ok     torch")
    assert "1 problem" in lines[-1]


def test_the_exit_code_is_one_if_something_is_fatal(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "run_checks", lambda: [doctor.check_torch(None)])
    assert doctor.main() == 1
    monkeypatch.setattr(doctor, "run_checks", lambda: [doctor.check_cores(1, 1)])
    assert doctor.main() == 0
    capsys.readouterr()


def test_the_whole_report_on_this_machine_with_four_talking_ranks():
    result = subprocess.run([sys.executable, "-m", "helpers", "doctor"], capture_output=True, text=True, timeout=150)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 ranks    communicate, " in result.stdout
    assert result.stderr == ""


def test_an_unknown_command_is_answered_with_the_known_ones():
    result = subprocess.run([sys.executable, "-m", "helpers", "docter"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "doctor" in result.stderr


def test_a_reader_who_has_seen_enough_ends_a_command_in_silence():
    """As `| head` does: the pipe is closed before the first line is written."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "helpers", "plan", "--model", "gpt2", "--gpus", "1", "--gpu", "H100"]
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, "")
