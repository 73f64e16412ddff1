"""The interview corner: a chapter's cards as folded HTML, with a plain text that never changes between runs."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from helpers.interview.bank_file import load_bank
from helpers.interview.cards import Card
from helpers.interview.links import link
from helpers.interview.words import say
from helpers.learner.words import Words

BOX = "border-left:3px solid rgba(128,128,128,.45);padding:.15em 0 .15em .9em;margin:.35em 0 .6em .2em;max-width:52em"
BADGE = "border:1px solid currentColor;border-radius:3px;padding:0 .35em;margin-right:.5em;font-size:80%;opacity:.75"
QUIET = "opacity:.75;font-size:90%"


@dataclass(frozen=True)
class Corner:
    """What `corner` returns: cards that a notebook shows folded."""

    chapter: str
    cards: tuple[Card, ...]
    num_in_bank: int

    def __repr__(self) -> str:
        lines = [f"Interview corner {self.chapter}, questions: {len(self.cards)}"]
        lines += [f"{i:2}. [{card.level}] {card.question.en}" for i, card in enumerate(self.cards, start=1)]
        return "\n".join(lines + self._footer())

    def _repr_html_(self) -> str:
        footer = "".join(f'<p style="{QUIET}">{html.escape(line)}</p>' for line in self._footer())
        return f"<div>{''.join(card_html(card) for card in self.cards)}{footer}</div>"

    def _footer(self) -> list[str]:
        waiting = self.num_in_bank - len(self.cards)
        where = f"python -m helpers quiz --topic {self.cards[0].topic}, or the chapter interview"
        return [f"More cards on this wait in the quiz: {waiting} ({where})"] if waiting else []


def corner(chapter: str, count: int = 8) -> Corner:
    """The first `count` cards of a chapter's bank, folded: question first, English answer, Chinese below.

    `chapter` is the notebook's name without suffix, such as "03_ddp". Raises ValueError for a chapter without a bank.
    """
    if count < 1:
        raise ValueError(f"corner shows at least 1 card; count is {count}")
    cards = load_bank(chapter)
    return Corner(chapter=chapter, cards=cards[:count], num_in_bank=len(cards))


def card_html(card: Card) -> str:
    """One card as a folded block; colours come from the page, so it reads in dark and in light."""
    return (
        f'<details style="margin:.5em 0"><summary style="cursor:pointer"><span style="{BADGE}">{card.level}</span>'
        f'{inline(card.question.en)}<br><span style="{QUIET}" lang="zh">{inline(card.question.zh)}</span></summary>'
        f"{language_html(card, 'en')}{language_html(card, 'zh')}{shown_html(card)}</details>"
    )


def language_html(card: Card, language: str) -> str:
    """Answer, longer form, usual mistake and follow-ups in one language."""
    parts = paragraphs(card.full_answer(language))
    if card.usual_mistake:
        parts += labelled("usual_mistake", [card.usual_mistake], language)
    if card.follow_ups:
        parts += labelled("follow_ups", list(card.follow_ups), language)
    return f'<div lang="{language}" style="{BOX}">{parts}</div>'


def labelled(key: str, texts: list[Words], language: str) -> str:
    """A bold label, the word of this key, and its texts in one paragraph."""
    label, colon = say(key, language), say("colon", language)
    body = " ".join(inline(text.in_(language)) for text in texts)
    return f'<p style="margin:.3em 0"><b>{label}</b>{colon}{body}</p>'


def shown_html(card: Card) -> str:
    """Where the learner sees it run, or the source."""
    return f'<p style="{QUIET};margin-left:.2em">Shown by: {anchor(*link(card))}</p>'


def anchor(text: str, href: str) -> str:
    """A link."""
    return f'<a href="{html.escape(href)}">{html.escape(text)}</a>'


def paragraphs(text: str) -> str:
    """Blank lines part paragraphs."""
    parts = re.split(r"\n\s*\n", text.strip())
    return "".join(f'<p style="margin:.3em 0">{inline(part)}</p>' for part in parts)


def inline(text: str) -> str:
    """Escaped text in which `code` and **bold** are marked up."""
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text, flags=re.DOTALL)
