"""Check before a training run starts whether its traces will arrive.

``checks`` examines the machine it runs on. ``cluster`` runs ``probe`` on the nodes of a Ray cluster and
compares their answers with the driver. ``diagnosis`` holds the findings and shows them. The findings contain
names of environment variables, but no secret values.
"""

from __future__ import annotations

from otel_rollout.doctor.diagnosis import Diagnosis, DoctorFinding, Verdict, show

__all__ = ["Diagnosis", "DoctorFinding", "Verdict", "examine", "show"]

THIS_MACHINE = "this machine"


def examine(ray_address: str | None = None) -> Diagnosis:
    """Check this machine and, with an address, every node of that Ray cluster.

    Args:
        ray_address: address as for ``ray.init``; ``"auto"`` is the cluster that this machine belongs to. None
            checks no cluster.
    """
    import os

    from otel_rollout.doctor import checks, cluster

    rows = [finding.at(THIS_MACHINE) for finding in checks.check_this_machine(os.environ)]
    if ray_address is not None:
        rows += cluster.examine(ray_address, os.environ, THIS_MACHINE)
    return Diagnosis(tuple(rows))
