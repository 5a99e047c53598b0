"""Trace a framework without an edit to it: the parts of an integration. See docs/extending.md.

An integration is a package, or one module, that contains:

- a :class:`~otel_rollout.integrations.kit.seams.Seams` object with a table: the framework's module → the
  modules of the integration that patch it;
- for each entry of that table, a module with functions that ``seams.around``, ``seams.before`` or
  ``seams.after`` decorates, or with a function ``install(module)`` that calls ``seams.wrap``;
- a call of ``seams.install(…)`` where the framework imports the integration, or where the user does.

Modules: ``seams`` (wrap functions by name), ``open_trajectory`` (trajectories that a framework advances
together), ``open_operation`` (an operation whose result is known later), ``spans`` (attributes, output,
errors of a span), ``logged_errors`` (errors that a framework only logs), ``training_outcome`` (advantage,
part in the loss), ``tracker`` (names and runs of the tracker).
"""
