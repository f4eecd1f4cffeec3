"""Helpers that every subpackage needs and no user calls.

They cover text, files and folders, processes, random state, statistics, argument checks, and how
objects and widgets show themselves. A helper that only one subpackage needs is in that subpackage.
"""
