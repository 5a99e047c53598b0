"""The manifests as kustomize renders them: what the API takes, and what runs as they say."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from otel_rollout.spool import layout
from tests import go_tools
from tests.collector.support import (
    CONFIGURATIONS,
    ROOT,
    Collector,
    get,
    run_python,
    running_collectors,
    training_environment,
)
from tests.forwarder.test_delivery import forwarder_pid
from tests.ports import free_port
from tests.waiting import wait_for

BASE = CONFIGURATIONS
OVERLAY = ROOT / "examples" / "kubernetes"
COLLECTORS = [("DaemonSet", "otel-rollout-agent"), ("Deployment", "otel-rollout-gateway")]
NEWEST_CHECKED = "1.33"
OWN_METRICS = 8888

Manifest = dict[str, Any]


@cache
def rendered(directory: Path) -> list[Manifest]:
    """What `kubectl apply -k` would send."""
    command = [str(go_tools.get("kustomize")), "build", str(directory)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return list(yaml.safe_load_all(ran.stdout))


def manifest(kind: str, name: str, directory: Path = BASE) -> Manifest:
    """The manifest of a kind and name."""
    (found,) = [m for m in rendered(directory) if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


def pod_of(workload: Manifest) -> Manifest:
    """The pod of a workload's template, as a manifest."""
    return {"apiVersion": "v1", "kind": "Pod", **workload["spec"]["template"]}


@pytest.mark.parametrize("directory", [BASE, OVERLAY], ids=["base", "overlay"])
def test_kubernetes_takes_the_rendered_manifests(directory: Path) -> None:
    """They fit the API's own schema, strictly: no field that it does not know."""
    kinds = [one["kind"] for one in rendered(directory)]
    assert {"DaemonSet", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= {*kinds}
    for one in rendered(directory):
        kubernetes_validate.validate(one, NEWEST_CHECKED, strict=True)
    assert directory != OVERLAY or "Job" in kinds


def test_everything_in_an_overlay_is_in_its_namespace() -> None:
    """Nothing is left in the default namespace."""
    for one in rendered(OVERLAY):
        if one["kind"] != "Namespace":
            assert one["metadata"]["namespace"] == "otel-rollout", one["metadata"]["name"]


def files_of(pod: Manifest) -> list[str]:
    """The configurations that a Collector's arguments name, in their order."""
    arguments = pod["spec"]["containers"][0]["args"]
    return [one.removeprefix("--config=/etc/otelcol/") for one in arguments]


@pytest.mark.parametrize(("kind", "name"), COLLECTORS)
def test_collector_reads_the_files_of_its_config_map(kind: str, name: str) -> None:
    """Each file of its arguments is in the ConfigMap that it mounts, as it is in this repository."""
    pod = pod_of(manifest(kind, name))
    (volume,) = [one["configMap"]["name"] for one in pod["spec"]["volumes"] if "configMap" in one]
    data = manifest("ConfigMap", volume)["data"]
    assert data == {file: (CONFIGURATIONS / file).read_text() for file in data}
    assert data.keys() >= {*files_of(pod)}


def test_an_overlay_needs_no_further_file() -> None:
    """Every configuration for a cluster is in the ConfigMap of agent or gateway."""
    configured = {
        path.name
        for path in CONFIGURATIONS.glob("*.yaml")
        if yaml.safe_load(path.read_text()).keys() & {"service", "receivers", "exporters"}
    }
    maps = [one["data"].keys() for one in rendered(BASE) if one["kind"] == "ConfigMap"]
    assert configured - {"builder.yaml", "local.yaml"} == set().union(*maps)


def names(collector: Collector) -> set[str]:
    """The names of a Collector's own metrics."""
    return {name for name, _, _ in collector.own_metrics()}


@pytest.mark.parametrize(("kind", "name"), COLLECTORS)
def test_a_collector_runs_as_its_manifest_says(binary: Path, tmp_path: Path, kind: str, name: str) -> None:
    """With the manifest's arguments and variables, it starts and its probes answer."""
    (container,) = pod_of(manifest(kind, name))["spec"]["containers"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    reachable = {port["containerPort"] for port in container["ports"]} | {13133}
    listens = {name: value for name, value in variables.items() if value.startswith("0.0.0.0:")}
    assert variables.pop("COLLECTOR_METRICS_HOST") == "0.0.0.0"
    assert {int(value.rpartition(":")[2]) for value in listens.values()} | {OWN_METRICS} == reachable
    files = files_of(pod_of(manifest(kind, name)))
    assert files[0] == "base.yaml"
    variables = {name: value for name, value in variables.items() if name not in listens}
    with running_collectors(binary, tmp_path) as start:
        collector = start(*files[1:], **variables)
        probes = [container["livenessProbe"]["httpGet"], container["readinessProbe"]["httpGet"]]
        for probe in probes:
            assert probe["port"] == int(listens["COLLECTOR_HEALTH"].rpartition(":")[2])
            assert get(f"http://127.0.0.1:{collector.health}{probe['path']}") is not None
        wait_for(lambda: "otelcol_exporter_queue_size" in names(collector), what="what a drain waits for")
    memory = variables.get("COLLECTOR_MEMORY_MIB", "512")
    quantity = container["resources"]["limits"]["memory"]
    assert quantity.endswith("Mi")
    assert int(quantity.removesuffix("Mi")) > int(memory)
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_agents_reach_the_gateways_service() -> None:
    """Agents send to a port of the Service, which is a port of the gateway's pods."""
    service = manifest("Service", "otel-rollout-gateway")
    template = manifest("Deployment", "otel-rollout-gateway")["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == ports
    agent = pod_of(manifest("DaemonSet", "otel-rollout-agent"))["spec"]["containers"][0]
    variables = {one["name"]: one for one in agent["env"]}
    addresses = {f"http://{service['metadata']['name']}:{port['port']}" for port in service["spec"]["ports"]}
    assert variables["GATEWAY_ENDPOINT"]["value"] in addresses
    claims = [volume.get("persistentVolumeClaim", {}) for volume in template["spec"]["volumes"]]
    (claim,) = [one["claimName"] for one in claims if one]
    assert manifest("PersistentVolumeClaim", claim)


def test_network_policies_let_through_what_the_collectors_send() -> None:
    """Policies select the pods, name their ports, and let agents, and them alone, send to the gateway."""
    pods = {name: pod_of(manifest(kind, name)) for kind, name in COLLECTORS}
    for name, pod in pods.items():
        policy = manifest("NetworkPolicy", name)["spec"]
        assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        admitted = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
        assert sorted(admitted) == sorted(port["name"] for port in pod["spec"]["containers"][0]["ports"])
    agent, gateway = (manifest("NetworkPolicy", name)["spec"] for _, name in COLLECTORS)
    assert _peers(gateway["ingress"][0]["from"]) == agent["podSelector"]["matchLabels"]
    to_gateway, to_names = agent["egress"]
    assert _peers(to_gateway["to"]) == gateway["podSelector"]["matchLabels"]
    assert {port["port"] for port in to_names["ports"]} == {53}


def _peers(peers: list[Manifest]) -> dict[str, str]:
    """The labels of the only peer of a rule."""
    ((kind, selector),) = peers[0].items()
    assert kind == "podSelector"
    return dict(selector["matchLabels"])


@pytest.fixture
def documented_overlay(tmp_path: Path) -> Path:
    """A directory with the overlay of docs/collector.md, beside a copy of the configurations."""
    shutil.copytree(CONFIGURATIONS, tmp_path / "otel-rollout" / "collector-config")
    (block,) = [one for one in yaml_blocks(ROOT / "docs" / "collector.md") if "kind: Kustomization" in one]
    (tmp_path / "kustomization.yaml").write_text(block)
    return tmp_path


def yaml_blocks(page: Path) -> list[str]:
    """The YAML blocks of a page."""
    return re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_kubernetes_takes_the_documented_overlay(documented_overlay: Path) -> None:
    """Its namespace, images, destination and credentials are where they belong, and fit the API's schema."""
    for one in rendered(documented_overlay):
        kubernetes_validate.validate(one, NEWEST_CHECKED, strict=True)
        assert one["metadata"]["namespace"] == "telemetry"
    pods = {name: pod_of(manifest(kind, name, documented_overlay)) for kind, name in COLLECTORS}
    for pod in pods.values():
        assert pod["spec"]["containers"][0]["image"].startswith("registry.example.com/")
    assert files_of(pods["otel-rollout-agent"]) == ["base.yaml", "agent.yaml", "agent-tls.yaml"]
    gateway = pods["otel-rollout-gateway"]
    assert {*files_of(gateway)} == {"base.yaml", "gateway.yaml", "to-otlp.yaml", "gateway-tls.yaml"}
    variables = {one["name"]: one for one in gateway["spec"]["containers"][0]["env"]}
    assert variables["BACKEND_AUTHORIZATION"]["valueFrom"]["secretKeyRef"]["name"] == "backend"


def test_documented_overlay_delivers_over_tls(
    documented_overlay: Path,
    tmp_path: Path,
    collector: Callable[..., Collector],
    certificate: dict[str, str],
) -> None:
    """Real Collectors with its arguments and variables deliver.

    Files of the Secrets are where the variables say.
    """
    secrets = {
        "tls.crt": certificate["GATEWAY_CERTIFICATE"],
        "ca.crt": certificate["GATEWAY_CERTIFICATE"],
        "tls.key": certificate["GATEWAY_KEY"],
        "token": certificate["GATEWAY_TOKEN_FILE"],
    }
    backend = collector("local.yaml", "to-file.yaml")
    started: dict[str, Collector] = {}
    for kind, name in reversed(COLLECTORS):
        pod = pod_of(manifest(kind, name, documented_overlay))
        mounted = mounted_secrets(pod)
        variables = {
            one["name"]: secrets[mounted[one["value"]]]
            for one in pod["spec"]["containers"][0]["env"]
            if one.get("value") in mounted
        }
        assert len(variables) == len(mounted)
        if started:
            variables["GATEWAY_ENDPOINT"] = started["otel-rollout-gateway"].endpoint.replace(
                "http:", "https:"
            )
        started[name] = collector(*files_of(pod)[1:], BACKEND_ENDPOINT=backend.endpoint, **variables)
    environment = training_environment(tmp_path / "spool")
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = started["otel-rollout-agent"].endpoint
    run_python("tests.programs.record_one_operation", environment)
    wait_for(lambda: len(backend.span_ids()) == 2, what="the spans behind agent and gateway")


def mounted_secrets(pod: Manifest) -> dict[str, str]:
    """Path in the container → key, of each Secret's file that a pod mounts."""
    places = {one["name"]: one["mountPath"] for one in pod["spec"]["containers"][0]["volumeMounts"]}
    return {
        f"{places[volume['name']]}/{item['path']}": item["key"]
        for volume in pod["spec"]["volumes"]
        for source in volume.get("projected", {}).get("sources", [])
        for item in source["secret"]["items"]
    }


def test_disruption_budget_never_blocks_a_drain() -> None:
    """It selects the gateway, and one pod may always be evicted."""
    budget = manifest("PodDisruptionBudget", "otel-rollout-gateway")["spec"]
    labels = pod_of(manifest("Deployment", "otel-rollout-gateway"))["metadata"]["labels"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}


def test_sidecar_shares_spool_name_and_image_with_the_worker() -> None:
    """Both containers have one volume, node name and image, and the Job keeps its own variables."""
    pod = pod_of(manifest("Job", "training", OVERLAY))["spec"]
    (worker,), (sidecar,) = pod["containers"], pod["initContainers"]
    assert worker["image"] == sidecar["image"] == "images.example.com/research/training:1.4"
    assert worker["volumeMounts"] == sidecar["volumeMounts"]
    names = [one["name"] for one in worker["env"]]
    assert names.index("NODE_IP") < names.index("OTEL_EXPORTER_OTLP_ENDPOINT")  # $(NODE_IP) needs it earlier
    assert "OTEL_ROLLOUT_PROJECT" in names
    shared = {"OTEL_ROLLOUT_SPOOL_DIR", "OTEL_ROLLOUT_NODE", "OTEL_ROLLOUT_SPOOL_LIMIT"}
    of_worker, of_sidecar = ([e for e in each["env"] if e["name"] in shared] for each in (worker, sidecar))
    assert of_worker == of_sidecar
    (volume,) = pod["volumes"]
    limit = {one["name"]: one.get("value") for one in worker["env"]}["OTEL_ROLLOUT_SPOOL_LIMIT"]
    assert int(limit) < int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi")) << 30
    assert sidecar["restartPolicy"] == "Always"


def test_job_without_the_label_is_left_alone(tmp_path: Path) -> None:
    """The component patches no Job that does not ask for the sidecar."""
    shutil.copytree(CONFIGURATIONS, tmp_path / "collector-config")
    shutil.copytree(OVERLAY, tmp_path / "examples" / "kubernetes")
    training = tmp_path / "examples" / "kubernetes" / "training.yaml"
    training.write_text(training.read_text().replace("otel-rollout/sidecar", "example.com/sidecar"))
    pod = pod_of(manifest("Job", "training", training.parent))["spec"]
    assert "initContainers" not in pod


def killed(argument: str) -> list[int]:
    """Kill each process that has an argument, and return their ids; none is left if there are none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if argument.encode() in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
                found.append(int(path.parent.name))
    return found


def test_the_sidecar_delivers_what_a_killed_worker_left(
    tmp_path: Path, collector: Callable[..., Collector]
) -> None:
    """Its script, as it is: the spans of a worker that is gone arrive, and SIGTERM ends it with 0."""
    (sidecar,) = pod_of(manifest("Job", "training", OVERLAY))["spec"]["initContainers"]
    spool = tmp_path / "spool"
    environment = training_environment(spool)
    unreachable = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    at_once = {"OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": "0"}
    run_python("tests.programs.record_one_operation", environment | unreachable | at_once)
    (node_dir,) = layout.node_directories(spool)
    wait_for(lambda: forwarder_pid(node_dir), what="the worker's forwarder")
    wait_for(lambda: not killed(str(node_dir)), what="the end of the worker's forwarder")

    running = collector("local.yaml", "to-file.yaml")
    path = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": running.endpoint, "PATH": path}
    with subprocess.Popen([*sidecar["command"], *sidecar["args"]], env=environment) as process:
        try:
            wait_for(lambda: len(running.spans()) == 2, what="the worker's spans")
            process.terminate()  # to the shell alone, as Kubernetes does
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("probe", ["livenessProbe", "readinessProbe"])
def test_the_sidecars_probes_answer_for_the_spool(tmp_path: Path, probe: str) -> None:
    """Its commands, as they are: well before anything is recorded and after.

    Not well where the spool cannot be read.
    """
    (sidecar,) = pod_of(manifest("Job", "training", OVERLAY))["spec"]["initContainers"]
    (mount,) = sidecar["volumeMounts"]
    spool = tmp_path / "spool"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def ask() -> int:
        command = [
            str(spool) if part == mount["mountPath"] else part for part in sidecar[probe]["exec"]["command"]
        ]
        if probe == "readinessProbe":  # a test's disk may be nearly full
            command += ["--min-free", "0"]
        return subprocess.run(command, env={**os.environ, "PATH": path}, timeout=60, check=False).returncode

    assert ask() == 1
    spool.mkdir()
    assert ask() == 0
    environment = training_environment(spool) | {"OTEL_TRACES_EXPORTER": "spool"}
    run_python("tests.programs.record_one_operation", environment)
    assert [*spool.iterdir()]
    assert ask() == 0
    shutil.rmtree(spool)
    spool.write_text("in its place")
    assert ask() == 1
