"""Check the demo's packages, credentials and addresses before it starts anything."""

from __future__ import annotations

import importlib.util

import typer
from rich.console import Console

from otel_rollout_demo.console import print_plain


def require_packages(console: Console, model: str | None, needs_mlflow: bool) -> None:
    """Exit if a package is missing, and print how to install it.

    Args:
        console: where messages are printed.
        model: a causal language model, which needs PyTorch; None for the scripted model.
        needs_mlflow: whether the traces go to a database, which MLflow's own code writes.
    """
    needed = ["ray", "transformers", "jinja2"]
    needed += ["torch"] if model else []
    needed += ["mlflow"] if needs_mlflow else []
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        extras = "demo,model" if model else "demo"
        console.print(f"The demo needs {', '.join(missing)}: pip install 'otel-rollout\\[{extras}]'")
        raise typer.Exit(2)


def require_mlflow_uri(console: Console, uri: str) -> None:
    """Exit if MLflow's exporter refuses the tracking URI."""
    from otel_rollout_mlflow import MlflowSpanExporter

    try:
        MlflowSpanExporter(tracking_uri=uri).shutdown()
    except ValueError as error:
        print_plain(console, str(error))
        raise typer.Exit(2) from None


def require_weave_login(console: Console) -> None:
    """Exit if Weave refuses the credentials, or there are none."""
    from otel_rollout_weave import WeaveSpanExporter

    try:
        exporter = WeaveSpanExporter()
        problem = exporter.check()
        exporter.shutdown()
    except ValueError as error:
        print_plain(console, str(error))
        raise typer.Exit(2) from None
    if problem is not None:
        print_plain(console, problem.message)
        raise typer.Exit(2)
