"""Set-up: which torch, which commands, and one sentence where it cannot go on. Nothing is installed here."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

from tools import install, wheelhouse

ROOT = install.ROOT


def choose(wish="auto", *, system="Linux", machine="x86_64", gpu=False):
    return install.choose_torch(wish, system=system, machine=machine, gpu=gpu)


def steps(choice, tmp_path, **changes):
    settings = {
        "cpu_index": "https://mirror/cpu",
        "wheelhouse": tmp_path / "none",
        "constraints": ROOT / "constraints.txt",
    }
    return install.pip_steps(choice, **{**settings, **changes})


@pytest.mark.parametrize(
    "machine, choice",
    [
        ({}, "cpu"),
        ({"gpu": True}, "cuda"),
        ({"gpu": True, "wish": "cpu"}, "cpu"),
        ({"wish": "cuda"}, "cuda"),
        ({"machine": "aarch64"}, "plain"),
        ({"system": "Darwin", "machine": "arm64"}, "plain"),
    ],
)
def test_the_build_of_torch_follows_the_machine_unless_it_is_named(machine, choice):
    assert choose(**machine) == choice


@pytest.mark.parametrize(
    "machine, words", [({"system": "Darwin"}, "Intel"), ({"wish": "gpu"}, "auto, cpu, cuda, plain")]
)
def test_what_cannot_be_chosen_is_a_sentence(machine, words):
    with pytest.raises(install.SetupError, match=words):
        choose(**machine)


def test_only_the_cpu_build_satisfies_the_cpu_requirement(tmp_path):
    first, rest = steps("cpu", tmp_path)
    specifier = Requirement(first[-1]).specifier
    version = next(iter(specifier)).version
    assert version.endswith("+cpu")
    assert version in specifier
    assert version.removesuffix("+cpu") not in specifier
    assert "--no-deps" in first
    assert first[first.index("--extra-index-url") + 1] == "https://mirror/cpu"


def test_only_torch_asks_the_extra_index_and_briefly(tmp_path):
    first, rest = steps("cpu", tmp_path)
    assert "--extra-index-url" not in rest
    assert int(first[first.index("--timeout") + 1]) <= 10
    assert int(first[first.index("--retries") + 1]) <= 1


@pytest.mark.parametrize("choice", ["cuda", "plain"])
def test_other_builds_come_from_the_ordinary_index(choice, tmp_path):
    first, _ = steps(choice, tmp_path)
    assert "+" not in first[-1]
    assert "--extra-index-url" not in first


def test_a_wheelhouse_is_the_only_source_where_there_is_one(tmp_path):
    for step in steps("cpu", tmp_path, wheelhouse=tmp_path):
        assert "--no-index" in step
        assert step[step.index("--find-links") + 1] == str(tmp_path)
        assert "--extra-index-url" not in step


def test_the_wheelhouse_downloads_the_build_that_set_up_installs(tmp_path):
    settings = {"cpu_index": "https://mirror/cpu", "target": tmp_path, "constraints": ROOT / "constraints.txt"}
    torch_only, rest = wheelhouse.download_steps("cpu", **settings)
    assert torch_only[0] == rest[0] == "download"
    assert torch_only[-1].endswith("+cpu")
    assert torch_only[-1] in rest
    assert "setuptools" in rest
    assert "-e" not in rest
    assert any(argument.endswith("[dev,class]") for argument in rest)


def test_nbgrader_comes_with_the_tests_only_and_leaves_jupyterlab_as_it_is(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(install, "run_pip", lambda python, arguments: ran.append(arguments))
    (tmp_path / ".venv").mkdir()
    for _ in range(2):
        install.add_class(tmp_path / ".venv", tmp_path / "none")
    assert [arguments[-1] for arguments in ran] == [f"{ROOT}[class]"], "once, and not again while nothing changed"
    assert not any("class" in argument for step in steps("cpu", tmp_path) for argument in step)
    config = tmp_path / ".venv" / "etc" / "jupyter"
    page = json.loads((config / "labconfig" / "page_config.json").read_text())
    assert page == {"disabledExtensions": {"@jupyter/nbgrader": True}}
    (server,) = (config / "jupyter_server_config.d").iterdir()
    assert set(json.loads(server.read_text())["ServerApp"]["jpserver_extensions"].values()) == {False}


def test_a_python_without_venv_names_the_package_to_install():
    with pytest.raises(install.SetupError, match="no ensurepip module.*python3-venv"):
        install.check_venv(has_module=lambda name: None if name == "ensurepip" else object())


def test_this_python_is_good_enough():
    install.check_venv()


def test_a_sentence_goes_to_stderr_and_the_exit_code_is_one(capsys, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert install.main(["--venv", "never-made"]) == 1
    assert capsys.readouterr().err.startswith("Set-up stopped. ")


def test_a_second_call_installs_nothing(tmp_path, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(install, "install", lambda choice, **_: calls.append(choice))
    for _ in range(2):
        assert install.main(["--venv", str(tmp_path), "--torch", "cpu"]) == 0
    assert install.main(["--venv", str(tmp_path), "--torch", "cuda"]) == 0
    assert calls == ["cpu", "cuda"]


def test_failed_pip_names_the_command_and_the_ways_out():
    with pytest.raises(install.SetupError, match=r"pip nonsense.*make wheelhouse.*TORCH_CPU_INDEX"):
        install.run_pip(sys.executable, ["nonsense"])


def test_the_size_is_said_before_the_download(tmp_path):
    assert "415 MB" in install.announce("cpu", tmp_path / "none")
    (tmp_path / "a.whl").write_bytes(bytes(2_000_000))
    assert "2 MB, no network" in install.announce("cpu", tmp_path)


def test_the_stamp_changes_with_the_build():
    assert install.fingerprint("cpu") != install.fingerprint("cuda")


@pytest.mark.parametrize("name", ["install.py", "lay_course.py", "open_lab.py"])
def test_tools_that_run_before_set_up_need_only_the_standard_library(name):
    code = f"import sys; sys.path.insert(0, 'tools'); import {name[:-3]}"
    result = subprocess.run([sys.executable, "-S", "-I", "-c", code.replace("'tools'", repr(str(ROOT / "tools")))])
    assert result.returncode == 0
