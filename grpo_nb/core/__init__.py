"""Helpers that every subpackage needs and no user calls.

They cover text, files and folders, processes, random state, statistics, argument checks, and how
objects and widgets show themselves. Some have one caller, and need no other part of the kit.
"""
