"""Provides two small tools: numbers as text with their units, and what a collective sends and costs.

units.py  bytes, seconds and rates as a person reads them
costs.py  bytes sent and rounds taken by each algorithm of each collective

Both are needed by packages that must not import each other. Begin with costs.py.
"""
