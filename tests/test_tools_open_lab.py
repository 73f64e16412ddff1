"""How JupyterLab is started: with or without a browser, where, and on which port."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import open_lab


def command(port="", ip="", screen=False, root_user=False):
    return open_lab.lab_command(Path("work"), port=port, ip=ip, screen=screen, root_user=root_user)


def test_it_opens_the_first_chapter_in_work():
    words = command()
    assert "--ServerApp.root_dir=work" in words
    assert "--LabApp.default_url=/lab/tree/00_start_here.ipynb" in words


@pytest.mark.parametrize(
    "settings, browser",
    [({"screen": True}, True), ({"screen": False}, False), ({"screen": True, "ip": "0.0.0.0"}, False)],
)
def test_a_browser_opens_only_where_someone_sits(settings, browser):
    assert ("--no-browser" not in command(**settings)) == browser


def test_port_and_address_are_passed_on():
    assert {"--port=8890", "--ip=0.0.0.0"} <= set(command(port="8890", ip="0.0.0.0"))
    assert not [word for word in command() if word.startswith(("--port", "--ip"))]


@pytest.mark.parametrize("port", ["abc", "0", "70000", "-1"])
def test_what_is_no_port_is_a_sentence(port):
    with pytest.raises(ValueError, match="for example PORT=8890"):
        command(port=port)


def test_root_in_a_container_may_start_it():
    assert "--allow-root" in command(root_user=True)
    assert "--allow-root" not in command()


@pytest.mark.parametrize(
    "environment, platform, seen",
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "a b"}, "linux", False),
        ({"DISPLAY": ":0", "CI": "true"}, "linux", False),
        ({}, "darwin", True),
    ],
)
def test_a_screen_is_known_from_the_environment(environment, platform, seen):
    assert open_lab.has_screen(environment, platform) == seen


def test_inside_a_jupyterhub_nothing_is_started(monkeypatch, capsys):
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    monkeypatch.setattr(open_lab.os, "execv", lambda *_: pytest.fail("a second server was started"))
    assert open_lab.main([]) == 0
    assert "work/00_start_here.ipynb" in capsys.readouterr().out
