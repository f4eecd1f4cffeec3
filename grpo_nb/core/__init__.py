"""Helpers that know nothing of training: files, processes, statistics, and how objects look.

No user calls them. They need no other part of the kit.
"""
