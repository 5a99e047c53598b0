"""Receive spans of other programs by OTLP/HTTP, and record them in the run.

The receiver is a process of its own, one for each run and node:
``python -m otel_rollout.record.receiver NODE_DIRECTORY``. :mod:`otel_rollout.record.launch.launcher` starts
the process. It records with the same writer as every other process of the run, so received spans have the
same durability, counts and exporters.
"""
