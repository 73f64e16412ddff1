"""Every explorer of the package, made without a front end, and dials turned as a learner would."""

from helpers import widgets
from helpers.records import Span, Timeline

SPANS = (
    Span(rank=0, lane="compute", name="forward", kind="forward", start=0.0, end=1.0),
    Span(rank=1, lane="communication", name="all_reduce", kind="communication", start=0.5, end=1.0, num_bytes=10),
)
NAMES = [name for name in widgets.__all__ if name.endswith("Explorer")]


def make(name: str):
    """An explorer as it starts; the viewer of timelines needs one to show."""
    given = [Timeline(spans=SPANS, source="predicted")] if name == "TimelineExplorer" else []
    return getattr(widgets, name)(*given)


def turned(shown, **settings):
    """The explorer, after its dials were set in this order."""
    for name, value in settings.items():
        getattr(shown, name).value = value
    return shown
