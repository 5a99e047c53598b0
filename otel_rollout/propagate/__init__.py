"""Propagation: one trajectory is one trace, whichever processes and threads it runs through.

``carrier`` is what travels; ``http``, ``threads`` and ``ray`` are the roads. Nothing is imported from Ray
before it is needed.
"""
