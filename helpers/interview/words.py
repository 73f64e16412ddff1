"""What the quiz says, from helpers/learner/words/quiz.yaml: one place, so that no language lacks a sentence."""

from __future__ import annotations

from datetime import timedelta

from helpers.learner.words import book

RATINGS = ("again", "hard", "good", "easy")  # in the order of fsrs.Rating, from 1
say = book("quiz")  # say("rated", language, rating="good")


def topic_name(topic: str, language: str) -> str:
    """A topic as its readers call it: "tensor_parallel" or 张量并行; one without a name as it is."""
    return say(f"topics.{topic}", language) if f"topics.{topic}" in say else topic


def say_span(span: timedelta, language: str) -> str:
    """How long until a card comes back, rounded: "10 min", "3 days"."""
    minutes = max(1, round(span.total_seconds() / 60))
    days = round(span.total_seconds() / 86400)
    if minutes < 60:
        return say("minutes", language, count=minutes)
    if minutes < 60 * 20:
        return say("hours", language, count=round(minutes / 60))
    return say("day" if days == 1 else "days", language, count=days)
