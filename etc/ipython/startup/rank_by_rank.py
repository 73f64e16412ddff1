# Every kernel of this environment reads this first: helpers/learner/hooks.py says what for. Only in a folder of the
# course, because elsewhere `helpers` may be a module of another project. No name is left behind.
def _rank_by_rank(shell):
    from pathlib import Path

    marks = (".laid.json", "helpers/learner/hooks.py")  # of a learner's copies, and of the repository
    try:
        here = Path.cwd()
    except OSError:  # the folder was removed
        return
    if any((folder / mark).is_file() for folder in (here, *here.parents) for mark in marks):
        shell.extension_manager.load_extension("helpers.learner.hooks")


_rank_by_rank(get_ipython())  # noqa: F821
del _rank_by_rank
