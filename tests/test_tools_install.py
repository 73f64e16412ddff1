"""Set-up: which torch is installed, what make says before any Python of the course runs, and one sentence on failure.

Nothing is installed here.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

from tools import install, wheelhouse

# -- tools/install.py and tools/wheelhouse.py --------------------------------------------------------------------------
ROOT = install.ROOT


def choose(wish="auto", *, system="Linux", machine="x86_64", gpu=False):
    return install.choose_torch(wish, system=system, machine=machine, gpu=gpu)


def steps(choice, tmp_path, **changes):
    settings = {"cpu_index": "https://mirror/cpu", "wheelhouse": tmp_path / "none"}
    return install.pip_steps(choice, **{**settings, "constraints": ROOT / "constraints.txt", **changes})


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


def test_only_the_cpu_build_satisfies_the_cpu_requirement_and_only_torch_asks_the_extra_index_briefly(tmp_path):
    first, rest = steps("cpu", tmp_path)
    specifier = Requirement(first[-1]).specifier
    version = next(iter(specifier)).version
    assert version.endswith("+cpu")
    assert version in specifier
    assert version.removesuffix("+cpu") not in specifier
    assert "--no-deps" in first
    assert first[first.index("--extra-index-url") + 1] == "https://mirror/cpu"

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
    assert any(argument.endswith("[dev,class,book]") for argument in rest)


def test_nbgrader_comes_with_the_tests_only_and_leaves_jupyterlab_as_it_is(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(install, "run_pip", lambda python, arguments: ran.append(arguments))
    (tmp_path / ".venv").mkdir()
    for _ in range(2):
        install.add_extra("class", tmp_path / ".venv", tmp_path / "none")
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


def test_the_size_is_said_before_the_download_and_the_stamp_changes_with_the_build(tmp_path):
    assert "415 MB" in install.announce("cpu", tmp_path / "none")
    (tmp_path / "a.whl").write_bytes(bytes(2_000_000))
    assert "2 MB, no network" in install.announce("cpu", tmp_path)
    assert install.fingerprint("cpu") != install.fingerprint("cuda")


@pytest.mark.parametrize("name", ["install.py", "lay_course.py", "open_lab.py"])
def test_tools_that_run_before_set_up_need_only_the_standard_library(name):
    code = f"import sys; sys.path.insert(0, 'tools'); import {name[:-3]}"
    result = subprocess.run([sys.executable, "-S", "-I", "-c", code.replace("'tools'", repr(str(ROOT / "tools")))])
    assert result.returncode == 0


# -- Makefile ----------------------------------------------------------------------------------------------------------
OLD = '#!/bin/sh\nexec {python} -c "import sys; sys.version_info = (2, 7, 18)\n$2"\n'


@pytest.fixture
def clone(tmp_path):
    """What set-up reads, in a folder of its own; the real .venv is out of reach."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tools"):
        path = ROOT / name
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / name)
    return tmp_path


def make(folder, *words, **environment):
    if shutil.which("make") is None:
        pytest.skip("make is not installed here")
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(folder), **environment}
    return subprocess.run(["make", *words], cwd=folder, env=plain, capture_output=True, text=True)


def test_make_alone_lists_the_commands(clone):
    listed = make(clone).stdout
    names = "course test test-slow test-gpu bench check labs wheelhouse".split()
    assert all(f"make {name}" in listed for name in names)


def test_a_topic_is_tested_without_check_browser_and_nbval(clone):
    command = make(clone, "-n", "test", "ONLY=zero", "SYSTEM=1").stdout
    assert "--only 'zero'" in command and "nbval" not in command and "ruff" not in command


@pytest.mark.parametrize(("path", "runs_nbval"), [("", True), ("chromium", False)])
def test_nbval_runs_the_notebooks_where_there_is_no_browser(path, runs_nbval, clone, tmp_path):
    """What the shell makes of the recipe, with an echo for pytest."""
    line = next(line for line in make(clone, "-n", "test", "SYSTEM=1").stdout.splitlines() if "nbval" in line)
    (tmp_path / "bin").mkdir()
    if path:
        (tmp_path / "bin" / path).touch(mode=0o755)
    shell = ["/bin/sh", "-c", f"echo {line.strip().replace('python3', sys.executable)}"]
    done = subprocess.run(shell, cwd=ROOT, env={"PATH": str(tmp_path / "bin")}, capture_output=True, text=True)
    assert ("--nbval" in done.stdout.split()) == runs_nbval
    assert ("nbval and not in JupyterLab" in done.stderr) == runs_nbval


def test_work_is_what_was_typed_and_not_a_clusters_own():
    typed = ([], ["WORK=~/mine"])
    said = [make(ROOT, "-n", "course", "SYSTEM=1", *words, WORK="/scratch/ada").stdout for words in typed]
    assert "--work '' " in said[0] and "scratch" not in said[0] and said[1].count("--work '~/mine'") == 2


def test_no_python_is_a_sentence(clone):
    result = make(clone, "course", "PYTHON=no-such-python")
    assert result.returncode != 0
    assert "There is no no-such-python here: install Python 3.11 or newer" in result.stdout
    assert not (clone / ".venv").exists()


def test_an_old_python_is_told_so_before_it_reads_our_code(clone):
    old = clone / "old-python"
    old.write_text(OLD.format(python=sys.executable))
    old.chmod(0o755)
    result = make(clone, "course", f"PYTHON={old}")
    assert result.returncode != 0
    assert "This is Python 2.7 and the course needs 3.11 or newer" in result.stderr
    assert not (clone / ".venv").exists()


def test_inside_a_hub_nothing_is_installed_and_work_is_laid_out(clone):
    (clone / "notebooks").mkdir()
    (clone / "notebooks/00_start_here.ipynb").write_text("{}")
    result = make(clone, "course", f"PYTHON={sys.executable}", JUPYTERHUB_USER="ada")
    assert result.returncode == 0, result.stderr
    assert "JupyterHub" in result.stdout
    assert (clone / "work/00_start_here.ipynb").exists()
    assert not (clone / ".venv").exists()


def test_outputs_are_kept_for_a_projector_alone():
    said = [make(ROOT, "-n", "course", "SYSTEM=1", *words).stdout for words in ([], ["OUTPUTS=0"], ["OUTPUTS=1"])]
    assert ["--outputs" in one for one in said] == [False, False, True]
