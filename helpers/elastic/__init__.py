"""Elastic training by hand: a job whose ranks may die.

chaos.py     who dies when: seeded data
"""
