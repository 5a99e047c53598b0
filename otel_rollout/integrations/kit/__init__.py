"""Tools for integrations: seams, span helpers, errors that a framework only logs.

To trace another framework, write a package beside this one that contains:

- a :class:`~otel_rollout.integrations.kit.seams.Seams` object with a table: the framework's module → the
  module of your package that patches it;
- one module per entry of that table, with a function ``install(module)`` that calls ``seams.wrap`` for each
  function that it replaces;
- a call of ``seams.install(…)`` where the framework imports your package, or where the user calls it.
"""
