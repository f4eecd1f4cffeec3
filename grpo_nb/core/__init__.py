"""What every room needs and no user calls: text, folders that appear whole, processes, random state, deadlines,
and how objects, views and widgets show themselves.

Nothing here knows of models, data or runs; a helper that serves one room stands in that room.
"""
