"""Check why traces would not arrive, before a training run is started.

``checks`` looks at the machine it runs on, ``probe`` is what is sent to the nodes of a Ray cluster,
``cluster`` sends it and compares their answers with the driver, ``report`` is what people and machines get
to see. No value of a variable is ever shown, only names.
"""

from __future__ import annotations

from otel_rollout.doctor.report import Diagnosis, Row, Verdict, show

__all__ = ["Diagnosis", "Row", "Verdict", "examine", "show"]

THIS_MACHINE = "this machine"


def examine(ray_address: str | None = None) -> Diagnosis:
    """Check this machine and, with an address, every node of that Ray cluster.

    Args:
        ray_address: as for ``ray.init``, ``"auto"`` for the cluster this machine belongs to. None: no Ray.
    """
    import os

    from otel_rollout.doctor import checks, cluster

    rows = [finding.at(THIS_MACHINE) for finding in checks.this_machine(os.environ)]
    if ray_address is not None:
        rows += cluster.examine(ray_address, os.environ, THIS_MACHINE)
    return Diagnosis(tuple(rows))
