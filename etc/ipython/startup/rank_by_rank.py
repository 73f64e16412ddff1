# Every kernel of this environment reads this first: helpers/learner/hooks.py says what for. No name is left behind.
get_ipython().extension_manager.load_extension("helpers.learner.hooks")  # noqa: F821
