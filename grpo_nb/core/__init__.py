"""Helpers below all other parts: files, processes, statistics, and how objects look.

No user calls them. They import no other part of the kit.
"""
