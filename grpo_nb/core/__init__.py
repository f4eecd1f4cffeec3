"""Helpers below all other parts: files, processes, statistics, and how objects look.

Users import nothing from here. The helpers import no other part of the kit.
"""
