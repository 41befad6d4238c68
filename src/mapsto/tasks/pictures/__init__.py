"""Pictures of a run: curves, answers beside the truth, the data as the model receives it, mistakes, attention.

Every picture is a function that returns a matplotlib ``Figure``. matplotlib is optional (extra ``plot``) and
imported when the first picture is drawn; pyplot and its global state are never touched.
"""
