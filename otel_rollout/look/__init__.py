"""``otel-rollout show`` and ``compare``: one trajectory turn by turn, and two of them side by side.

``kept`` and ``in_mlflow`` read spans where they lie, ``reference`` says which are meant; ``summary``,
``conversation`` and ``comparison`` are pure; ``terminal`` and ``page`` show them to a person.
"""
