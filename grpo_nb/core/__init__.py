"""Helpers for all other parts: files, processes, statistics and the look of reports.

Users import nothing from here, and the helpers import no other part of the kit.
"""
