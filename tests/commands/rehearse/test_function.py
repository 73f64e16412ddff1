"""A function of a notebook is rehearsed as what it is: its name, its lines, and no script around them."""

from __future__ import annotations

from helpers.commands.rehearse.run import rehearse_function


def outer(device):
    x = torch.ones(2, device=device)  # noqa: F821 - the script imports it

    def inner(x):
        return x.numpy()

    return inner(x)


def test_a_report_names_the_function_and_its_lines_and_nothing_of_the_script_around():
    report = rehearse_function(outer)
    (found,) = report.findings
    assert "at outer line 5: `return x.numpy()`" in str(report)
    assert [(line, name) for _, line, name in found.chain] == [(7, "outer"), (5, "inner")]
    assert "script.py" not in str(report) and "<module>" not in str(report)
