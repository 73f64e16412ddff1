# Every kernel of this environment reads this first: helpers/hooks.py says what for. No name is left behind.
get_ipython().extension_manager.load_extension("helpers.hooks")  # noqa: F821
