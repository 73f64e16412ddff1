"""A matplotlib plot beside our pictures: the same width, letters as large, words, and it follows a dark page."""

from base64 import b64decode

import pytest

from helpers.draw import chart, chart_axes
from helpers.draw.scene import SHOWN


def drawn():
    axes = chart_axes("Cost of a message")
    axes.loglog([1, 10, 100], [2, 3, 30], label="ring")
    axes.set(xlabel="bytes", ylabel="seconds")
    axes.legend()
    return chart(axes, "The ring's line bends at 10 bytes.")


def test_it_is_as_wide_as_a_picture_and_says_what_it_shows():
    data, about = drawn()._repr_mimebundle_()
    assert data["text/plain"] == "[chart] Cost of a message"
    assert int.from_bytes(b64decode(data["image/png"])[16:20], "big") == 1500
    alt = "Cost of a message. The ring's line bends at 10 bytes."
    assert about == {"image/png": {"width": 1000, "alt": alt}, "needs_background": "light"}


def test_its_type_is_as_large_as_ours():
    made = drawn()
    made._repr_mimebundle_()
    axes = made.axes
    texts = [*axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label, axes.yaxis.label]
    texts += axes.get_legend().get_texts()
    assert min(text.get_fontsize() for text in texts if text.get_text()) * SHOWN >= 12


def test_a_plot_without_words_gets_a_sentence():
    with pytest.raises(ValueError, match="say in a sentence what the plot shows"):
        chart(chart_axes("mute"), "")
