"""Delivery: the forwarder, a process beside training that reads segments and feeds exporters.

Modules a training process imports (``launch``, ``drain``, ``report``) stay light; the rest is the
forwarder's own.
"""
