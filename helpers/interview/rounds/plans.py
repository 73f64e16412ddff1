"""A plan as it is typed for the cluster and the batch of a scene."""

from __future__ import annotations

from helpers.interview.rounds.scene import Scenario, words
from helpers.predict.advice.criticise import read_plan as read_typed_plan
from helpers.specs import Plan


def read_plan(given: str, scene: Scenario, language: str | None = None) -> Plan:
    """ "dp=4, tp=8 zero=1" as a Plan. Raises ValueError, a sentence, for what is none here."""
    try:
        return read_typed_plan(given, scene.model, scene.cluster, scene.global_batch, language)
    except ValueError as error:
        raise ValueError(words("no_plan", language, given=given, reason=str(error).rstrip("."))) from None
