"""Messages first: who takes part in each, then its parts; the dicts of the ranks are filled at the end."""

TASK = "10.split"


def split(calls):
    parts = [{} for _ in calls]
    names = {name for own in calls for name in own}
    for name in names:
        members = [rank for rank, own in enumerate(calls) if name in own]
        last = max(calls[rank][name][0] for rank in members)
        for rank in members:
            called, returned = calls[rank][name]
            moving = max(0, returned - last)
            parts[rank][name] = [returned - called - moving, moving]
    return tuple(parts)
