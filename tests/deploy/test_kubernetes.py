"""The manifests are valid, confined, and name only what the project and they themselves have."""

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from app.api import health, server
from app.config import BadSettings, Settings
from tests.deploy.files import (
    ROOT,
    dockerfile,
    every,
    load,
    load_all,
    made_secrets,
    pairs,
    parsed,
    settings,
    stages,
)

HOME = ROOT / "deploy/kubernetes"
BASE, MONITORING = HOME / "base", HOME / "monitoring"
IMAGE = stages(dockerfile((ROOT / "Dockerfile").read_text()))[-1]
GUIDE = (ROOT / "docs/deployment.md").read_text()
VERSIONS = ["1.27", "1.30", "1.33", "1.37"]
# Of the operator, not of Kubernetes: their structure is checked here, field by field.
CUSTOM = {"ServiceMonitor"}

Manifest = dict[str, Any]
Check = Callable[[list[Manifest]], Iterator[str]]


def listed(home: Path) -> list[Manifest]:
    return [
        one
        for name in load(home / "kustomization.yaml")["resources"]
        for one in load_all(home / name)
    ]


MANIFESTS = listed(BASE) + listed(MONITORING)


def complaints(manifests: list[Manifest]) -> list[str]:
    return [complaint for check in CHECKS for complaint in check(manifests)]


def named(one: Manifest) -> str:
    return f"{one['kind']} {one['metadata']['name']}"


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] == kind}


def workloads(manifests: list[Manifest]) -> dict[str, Manifest]:
    """By name, the pods of every Deployment and Job."""
    return {
        named(one): one["spec"]["template"]
        for one in manifests
        if one["kind"] in ("Deployment", "Job")
    }


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def ports(pod: Manifest) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"]
        for container in containers(pod)
        for port in container.get("ports", [])
    }


def selected(manifests: list[Manifest], labels: dict[str, str]) -> list[Manifest]:
    return [
        pod
        for pod in workloads(manifests).values()
        if labels.items() <= pod["metadata"]["labels"].items()
    ]


def configured() -> dict[str, str]:
    """What the ConfigMap that kustomize makes says."""
    (config,) = load(BASE / "kustomization.yaml")["configMapGenerator"]
    assert config["name"] == "shiftwatch"
    return dict(literal.split("=", 1) for literal in config["literals"])


def secret_keys() -> set[str]:
    """Of the secret that the guide has the operator make."""
    made = re.search(r"create secret generic shiftwatch((?:.*\\\n)*.*)\n", GUIDE)
    assert made is not None
    return set(re.findall(r"--from-file=([\w-]+)=", made[1]))


def pods_are_restricted(manifests: list[Manifest]) -> Iterator[str]:
    """Every field of the Pod Security Standard `restricted`, and a read-only root."""
    for name, pod in workloads(manifests).items():
        spec = pod["spec"]
        context = spec.get("securityContext", {})
        if context.get("runAsNonRoot") is not True:
            yield f"{name}: may run as root"
        if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{name}: has no seccomp profile"
        user = next(one.rest for one in IMAGE if one.word == "USER")
        if f"{context.get('runAsUser')}:{context.get('runAsGroup')}" != user:
            yield f"{name}: has another user than the image"
        for field in ("hostNetwork", "hostPID", "hostIPC"):
            if field in spec:
                yield f"{name}: {field}"
        kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
        if not kinds <= {"secret", "emptyDir", "configMap", "projected"}:
            yield f"{name}: volumes of {sorted(kinds)}"
        if any(every(spec, "hostPort")):
            yield f"{name}: takes a port of the host"
        for container in containers(pod):
            yield from _is_confined(f"{name}, {container['name']}", container)


def _is_confined(name: str, container: Manifest) -> Iterator[str]:
    wanted = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    if container.get("securityContext") != wanted:
        yield f"{name}: is not confined"
    if "/tmp" not in {mount["mountPath"] for mount in container["volumeMounts"]}:
        yield f"{name}: has no /tmp"
    resources = container.get("resources", {})
    if "memory" not in resources.get("limits", {}) or "cpu" not in resources.get("requests", {}):
        yield f"{name}: may take everything"


def the_namespace_enforces_it(manifests: list[Manifest]) -> Iterator[str]:
    for one in of_kind(manifests, "Namespace").values():
        for mode in ("enforce", "audit", "warn"):
            if one["metadata"]["labels"].get(f"pod-security.kubernetes.io/{mode}") != "restricted":
                yield f"the namespace does not {mode}"


def pods_have_no_token_and_no_links(manifests: list[Manifest]) -> Iterator[str]:
    accounts = of_kind(manifests, "ServiceAccount")
    for name, pod in workloads(manifests).items():
        if pod["spec"].get("automountServiceAccountToken") is not False:
            yield f"{name}: has a token"
        if pod["spec"].get("enableServiceLinks") is not False:
            yield f"{name}: gets the links of services"
        if pod["spec"].get("serviceAccountName") not in accounts:
            yield f"{name}: has no account"


def commands_are_known(manifests: list[Manifest]) -> Iterator[str]:
    for name, pod in workloads(manifests).items():
        for container in containers(pod):
            options = parsed(container["args"])
            secret = getattr(options, "secret_file", None)
            if isinstance(options, str):
                yield f"{name}: {options}"
            elif secret is not None and str(secret) not in mounted(pod, container):
                yield f"{name}: {secret} is not mounted"
            if container["image"] != "shiftwatch" or "command" in container:
                yield f"{name}: runs something else"


def mounted(pod: Manifest, container: Manifest) -> dict[str, str]:
    """By path, the key of the secret that lies there."""
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    return {
        f"{mount['mountPath']}/{item['path']}": item["key"]
        for mount in container["volumeMounts"]
        for item in volumes[mount["name"]].get("secret", {}).get("items", [])
    }


def secrets_are_those_of_the_guide(manifests: list[Manifest]) -> Iterator[str]:
    known = secret_keys()
    for name, pod in workloads(manifests).items():
        for secret in every(pod["spec"]["volumes"], "secret"):
            if secret["secretName"] != "shiftwatch":
                yield f"{name}: nobody makes {secret['secretName']}"
            yield from (
                f"{name}: the secret has no {item['key']}"
                for item in secret["items"]
                if item["key"] not in known
            )
        # Only what makes the keys gets to see them.
        if "Deployment" in name and {i["key"] for i in secret["items"]} != {"database-url"}:
            yield f"{name}: sees more secrets than it needs"
    for one in of_kind(manifests, "ServiceMonitor").values():
        for credentials in every(one, "credentials"):
            if credentials != {"name": "shiftwatch", "key": "scrape-key"}:
                yield f"{named(one)}: shows {credentials}"


def settings_are_understood(manifests: list[Manifest]) -> Iterator[str]:
    for name, pod in workloads(manifests).items():
        for container in containers(pod):
            if container["envFrom"] != [{"configMapRef": {"name": "shiftwatch"}}]:
                yield f"{name}: has other settings"
            own = {one["name"]: one.get("value", "") for one in container.get("env", [])}
            found = settings(pairs(IMAGE, "ENV") | configured() | own, here(pod, container))
            if isinstance(found, str):
                yield f"{name}: {found}"


def here(pod: Manifest, container: Manifest) -> dict[str, Path]:
    """For each mounted secret a file of the same kind."""
    return {path: SECRETS[key] for path, key in mounted(pod, container).items() if key in SECRETS}


SECRETS: dict[str, Path] = {}


@pytest.fixture(scope="module", autouse=True)
def secrets(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name, place in made_secrets(tmp_path_factory.mktemp("kubernetes")).items():
        SECRETS[name.replace("_", "-")] = place


def ports_are_listened_on(manifests: list[Manifest]) -> Iterator[str]:
    expected = {"http": Settings().port, "metrics": int(configured()["SHIFTWATCH_WORKER_PORT"])}
    for name, pod in workloads(manifests).items():
        for port, number in ports(pod).items():
            if expected.get(port) != number:
                yield f"{name}: nothing listens on {number} ({port})"
        for container in containers(pod):
            for probe in every(container, "httpGet"):
                if probe["port"] not in ports(pod):
                    yield f"{name}: has no port {probe['port']}"
                if probe["path"] not in {
                    getattr(route, "path", "") for route in health.router.routes
                }:
                    yield f"{name}: {probe['path']} is not served"


def deployments_are_watched(manifests: list[Manifest]) -> Iterator[str]:
    for name, pod in workloads(manifests).items():
        (container, *_) = pod["spec"]["containers"]
        wanted = {"api": {"startupProbe", "livenessProbe", "readinessProbe"}}.get(
            container["name"], {"startupProbe", "livenessProbe"}
        )
        if "Deployment" in name and not wanted <= set(container):
            yield f"{name}: is not watched"
        # A database that is away is no reason to start again.
        if container.get("livenessProbe", {}).get("httpGet", {}).get("path", "/livez") != "/livez":
            yield f"{name}: is killed when the database is away"


def stopping_takes_less_than_it_may(manifests: list[Manifest]) -> Iterator[str]:
    for name, pod in workloads(manifests).items():
        asleep = sum(int(command[1]) for command in every(pod, "command"))
        if "Deployment" in name:
            given = pod["spec"].get("terminationGracePeriodSeconds", 30)
            if given <= asleep + server.GRACE_SECONDS:
                yield f"{name}: is killed after {given} seconds"


def selectors_find_their_pods(manifests: list[Manifest]) -> Iterator[str]:
    for one in manifests:
        if one["kind"] not in ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"):
            continue
        spec = one["spec"]
        labels = spec["selector"] if "selector" in spec else spec["podSelector"]
        found = selected(manifests, labels.get("matchLabels", labels))
        exactly_one = one["kind"] != "NetworkPolicy"
        if not found or (exactly_one and len(found) != 1):
            yield f"{named(one)}: finds {len(found)} kinds of pods"
        yield from _ports_of(one, found)


def _ports_of(one: Manifest, pods: list[Manifest]) -> Iterator[str]:
    """The named ports of a Service or NetworkPolicy are those of its pods."""
    spec = one["spec"]
    wanted = [port["targetPort"] for port in spec.get("ports", [])]
    wanted += [port["port"] for rule in spec.get("ingress", []) for port in rule["ports"]]
    for port in wanted:
        if not all(port in ports(pod) for pod in pods):
            yield f"{named(one)}: its pods have no port {port}"


def the_autoscaler_has_a_deployment(manifests: list[Manifest]) -> Iterator[str]:
    deployments = of_kind(manifests, "Deployment")
    for one in of_kind(manifests, "HorizontalPodAutoscaler").values():
        target = one["spec"]["scaleTargetRef"]
        deployment = deployments.get(target["name"])
        if target["kind"] != "Deployment" or deployment is None:
            yield f"{named(one)}: scales nothing"
        elif "replicas" in deployment["spec"]:
            yield f"{named(one)}: applying the Deployment takes back what it decided"
        if one["spec"]["minReplicas"] < 2:
            yield f"{named(one)}: leaves the service without a second replica"


def monitors_find_their_services(manifests: list[Manifest]) -> Iterator[str]:
    services = of_kind(manifests, "Service").values()
    for one in of_kind(manifests, "ServiceMonitor").values():
        wanted = one["spec"]["selector"]["matchLabels"].items()
        found = [service for service in services if wanted <= service["metadata"]["labels"].items()]
        if len(found) != 1:
            yield f"{named(one)}: finds {len(found)} services"
            continue
        has = {port["name"] for port in found[0]["spec"]["ports"]}
        for endpoint in one["spec"]["endpoints"]:
            if endpoint["port"] not in has or endpoint["path"] != "/metrics":
                yield f"{named(one)}: asks where nobody answers"


def jobs_are_called_as_in_prometheus(manifests: list[Manifest]) -> Iterator[str]:
    """The operator takes a Service's name for the job's; rules and dashboards go by it."""
    jobs = {
        job["job_name"] for job in load(ROOT / "deploy/prometheus/prometheus.yml")["scrape_configs"]
    }
    services = set(of_kind(manifests, "Service"))
    if services != jobs - {"prometheus"}:
        yield f"jobs are called differently: {sorted(services ^ jobs)}"


def nothing_is_open_unsaid(manifests: list[Manifest]) -> Iterator[str]:
    policies = of_kind(manifests, "NetworkPolicy")
    deny = policies.get("default-deny", {}).get("spec")
    if deny != {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}:
        yield "not everything is closed at first"
    for name, policy in policies.items():
        for rule in policy["spec"].get("ingress", []) + policy["spec"].get("egress", []):
            if not rule.get("ports"):
                yield f"NetworkPolicy {name}: opens every port"
    outside = list(every(policies.get("worker", {}), "except"))
    if not any("169.254.0.0/16" in blocks for blocks in outside):
        yield "the worker reaches the metadata of the cloud"


CHECKS: list[Check] = [
    pods_are_restricted,
    the_namespace_enforces_it,
    pods_have_no_token_and_no_links,
    commands_are_known,
    secrets_are_those_of_the_guide,
    settings_are_understood,
    ports_are_listened_on,
    deployments_are_watched,
    stopping_takes_less_than_it_may,
    selectors_find_their_pods,
    the_autoscaler_has_a_deployment,
    monitors_find_their_services,
    jobs_are_called_as_in_prometheus,
    nothing_is_open_unsaid,
]


@pytest.mark.parametrize("home", [BASE, MONITORING], ids=lambda home: str(home.name))
def test_kustomize_lists_every_manifest(home: Path) -> None:
    resources = load(home / "kustomization.yaml")["resources"]

    assert sorted([*resources, "kustomization.yaml"]) == sorted(p.name for p in home.iterdir())


def test_every_directory_is_listed_here() -> None:
    assert {place.name for place in HOME.iterdir()} == {"base", "monitoring"}


def test_kustomize_puts_all_into_our_namespace() -> None:
    names = set(of_kind(MANIFESTS, "Namespace"))

    assert {load(home / "kustomization.yaml")["namespace"] for home in (BASE, MONITORING)} == names


def test_kustomize_names_the_image_that_the_manifests_name() -> None:
    (image,) = load(BASE / "kustomization.yaml")["images"]

    assert {image["name"]} == set(every(MANIFESTS, "image"))
    assert re.fullmatch(r"\d+\.\d+\.\d+", image["newTag"])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", listed(BASE), ids=named)
def test_kubernetes_takes_it(manifest: Manifest, version: str) -> None:
    assert manifest["kind"] not in CUSTOM

    kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_kubernetes_does_not_take_is_seen(version: str) -> None:
    wrong = copy.deepcopy(of_kind(MANIFESTS, "Deployment")["shiftwatch-api"])
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_the_manifests_know_their_project_and_each_other() -> None:
    assert complaints(MANIFESTS) == []


API, WORKER, JOB = (
    "Deployment shiftwatch-api",
    "Deployment shiftwatch-worker",
    "Job shiftwatch-migrate",
)
POD = "spec.template.spec"
FIRST = f"{POD}.containers.0"
MISTAKES: list[tuple[str, str, Any, str]] = [
    (API, f"{POD}.securityContext.runAsNonRoot", False, "may run as root"),
    (WORKER, f"{POD}.securityContext.seccompProfile", None, "no seccomp profile"),
    (JOB, f"{POD}.securityContext.runAsUser", 0, "another user than the image"),
    (API, f"{POD}.hostNetwork", True, "hostNetwork"),
    (API, f"{POD}.volumes.1", {"name": "tmp", "hostPath": {"path": "/"}}, "volumes of"),
    (API, f"{FIRST}.ports.0.hostPort", 80, "a port of the host"),
    (JOB, f"{POD}.initContainers.0.securityContext.capabilities", {}, "migrate: is not confined"),
    (API, f"{FIRST}.securityContext.readOnlyRootFilesystem", False, "is not confined"),
    (API, f"{FIRST}.volumeMounts.1.mountPath", "/var/tmp", "has no /tmp"),
    (API, f"{FIRST}.resources", {}, "may take everything"),
    ("Namespace shiftwatch", "metadata.labels", {}, "the namespace does not enforce"),
    (WORKER, f"{POD}.enableServiceLinks", True, "gets the links of services"),
    (WORKER, f"{POD}.automountServiceAccountToken", True, "has a token"),
    (WORKER, f"{POD}.serviceAccountName", "default", "has no account"),
    (API, f"{FIRST}.args", ["apis"], "invalid choice: 'apis'"),
    (API, f"{FIRST}.image", "other", "runs something else"),
    (JOB, f"{POD}.volumes.0.secret.items.1.path", "key", "admin-key is not mounted"),
    (JOB, f"{POD}.volumes.0.secret.items.1.key", "adminkey", "the secret has no adminkey"),
    (API, f"{POD}.volumes.0.secret.secretName", "other", "nobody makes other"),
    (API, f"{POD}.volumes.0.secret.items.0.path", "url", "cannot read"),
    (API, f"{FIRST}.env", [{"name": "SHIFTWATCH_PROT"}], "SHIFTWATCH_PROT: there is no"),
    (API, f"{FIRST}.envFrom", [], "has other settings"),
    (API, f"{FIRST}.ports.0.containerPort", 8080, "nothing listens on 8080"),
    (API, f"{FIRST}.livenessProbe.httpGet.port", "web", "has no port web"),
    (API, f"{FIRST}.startupProbe.httpGet.path", "/health", "/health is not served"),
    (API, f"{FIRST}.livenessProbe.httpGet.path", "/readyz", "when the database is away"),
    (API, f"{POD}.terminationGracePeriodSeconds", 30, "is killed after 30 seconds"),
    (API, "spec.template.metadata.labels", {}, "finds 0 kinds of pods"),
    ("Service shiftwatch-api", "spec.selector", {}, "finds 3 kinds of pods"),
    ("Service shiftwatch-api", "spec.ports.0.targetPort", "web", "no port web"),
    ("NetworkPolicy worker", "spec.ingress.0.ports.0.port", "http", "no port http"),
    ("HorizontalPodAutoscaler shiftwatch-api", "spec.scaleTargetRef.name", "x", "scales nothing"),
    ("HorizontalPodAutoscaler shiftwatch-api", "spec.minReplicas", 1, "second replica"),
    (API, "spec.replicas", 2, "takes back"),
    ("ServiceMonitor shiftwatch-api", "spec.selector.matchLabels", {}, "finds 2 services"),
    ("ServiceMonitor shiftwatch-worker", "spec.endpoints.0.port", "http", "nobody answers"),
    (
        "ServiceMonitor shiftwatch-api",
        "spec.endpoints.0.authorization.credentials.key",
        "admin-key",
        "shows",
    ),
    ("Service shiftwatch-worker", "metadata.name", "worker", "called differently"),
    ("NetworkPolicy default-deny", "spec.policyTypes", ["Ingress"], "closed at first"),
    ("NetworkPolicy worker", "spec.egress.0.ports", [], "opens every port"),
    ("NetworkPolicy worker", "spec.egress.0.to.0.ipBlock.except", [], "metadata of the cloud"),
]


def mistaken(name: str, place: str, value: Any) -> list[Manifest]:
    wrong = copy.deepcopy(MANIFESTS)
    inner: Any = next(one for one in wrong if named(one) == name)
    *path, last = place.split(".")
    for step in path:
        inner = inner[int(step)] if isinstance(inner, list) else inner[step]
    inner[int(last) if isinstance(inner, list) else last] = value
    return wrong


@pytest.mark.parametrize(("name", "place", "value", "complaint"), MISTAKES)
def test_a_mistake_is_seen(name: str, place: str, value: Any, complaint: str) -> None:
    assert complaint in "\n".join(complaints(mistaken(name, place, value)))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
def test_every_check_sees_a_mistake(check: Check) -> None:
    assert any(list(check(mistaken(*where))) for *where, _ in MISTAKES)


def test_the_links_of_our_own_services_would_stop_the_start() -> None:
    """Why pods must not have them: Kubernetes would set such names for every Service."""
    for name in of_kind(MANIFESTS, "Service"):
        link = name.upper().replace("-", "_")

        with pytest.raises(BadSettings, match="there is no such setting"):
            Settings.from_env({f"{link}_SERVICE_HOST": "10.0.0.1"})


def test_the_api_is_for_others_and_the_guide_says_what_to_change() -> None:
    (image,) = load(BASE / "kustomization.yaml")["images"]

    for placeholder in (image["newName"], configured()["SHIFTWATCH_PUBLIC_URL"]):
        assert "example.com" in placeholder
        assert placeholder in GUIDE
