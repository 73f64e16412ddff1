"""All calls of a message in one list, of which the last is the greatest."""

from collections import defaultdict

TASK = "10.split"


def split(calls):
    entered = defaultdict(list)
    for own in calls:
        for name, times in own.items():
            entered[name].append(times[0])

    def parts(name, times):
        waiting = sorted(entered[name])[-1] - times[0]
        whole = times[1] - times[0]
        return (whole, 0.0) if waiting > whole else (waiting, whole - waiting)

    return [{name: parts(name, own[name]) for name in reversed(own)} for own in calls]
