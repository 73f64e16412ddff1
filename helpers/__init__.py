"""Rank by Rank: distributed training, every claim run on live ranks."""

import sys


class _Moved:
    """The last finder, asked for what is nowhere: an old copy of a notebook imports what stands elsewhere now."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith(f"{__name__}."):
            from helpers.moved import sentence

            if said := sentence(name):
                raise ImportError(said, name=name)
        return None


sys.meta_path.append(_Moved)
