"""Messages: what one stage sends, the next one waits for, and nothing is sent that nobody waits for."""

import pytest

from helpers.schedules import ORDERS, Action, Message, awaited_by, sent_by


def singles(schedule):
    return [single for row in schedule.actions for action in row for single in action.singles]


@pytest.mark.parametrize("name", ORDERS)
def test_what_is_sent_is_what_is_awaited(name):
    """2 messages for each micro-batch and cut between stages, each sent once and awaited once."""
    schedule = ORDERS[name](4, 4)
    sent = [message for single in singles(schedule) if (message := sent_by(single, 4))]
    awaited = [message for single in singles(schedule) if (message := awaited_by(single, 4))]
    assert sorted(sent) == sorted(awaited) and len(set(sent)) == len(sent) == 2 * 4 * 3
    by_row = {m: rank for rank, row in enumerate(schedule.actions) for a in row if (m := sent_by(a, 4))}
    for message in sent:
        assert message.route(schedule) == (by_row[message], schedule.rank_of[message.stage])


@pytest.mark.parametrize(
    "text, awaited, sent",
    [
        ("0F3", None, ("F", 1, 3)),
        ("1F3", ("F", 1, 3), ("F", 2, 3)),
        ("2F3", ("F", 2, 3), None),
        ("2B3", None, ("B", 1, 3)),
        ("1I3", ("B", 1, 3), ("B", 0, 3)),
        ("0B3", ("B", 0, 3), None),
        ("1W3", None, None),
    ],
)
def test_of_three_stages(text, awaited, sent):
    action = Action.parse(text)
    assert (awaited_by(action, 3), sent_by(action, 3)) == (awaited, sent)


def test_a_message_knows_where_it_comes_from():
    assert Message("F", 2, 5).origin == (1, "F", 5)
    assert Message("B", 2, 5).origin == (3, "I", 5)
