"""Without a restart: copies of the model that go on when one of them dies, and heal it when it returns."""

from helpers.elastic.healing.copy import Copy, Settings
from helpers.elastic.healing.lighthouse import Lighthouse, Round, quorum
from helpers.elastic.healing.run import Run, go_on

__all__ = ["Copy", "Lighthouse", "Round", "Run", "Settings", "go_on", "quorum"]
