"""Rank by Rank, a course on distributed training in which every claim is run on live ranks (processes of this machine).

The notebooks import these packages. `python -m helpers` runs the commands; __main__.py lists them.
"""
