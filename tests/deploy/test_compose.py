"""docker-compose.yml names only what the project has, and opens no more than it must."""

import copy
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url

from app.config import PREFIX, Settings
from deploy.demo import send
from tests.deploy.files import ROOT, dockerfile, load, made_secrets, pairs, parsed, settings, stages

COMPOSE = load(ROOT / "docker-compose.yml")
PROMETHEUS = load(ROOT / "deploy/prometheus/prometheus.yml")
IMAGE = stages(dockerfile((ROOT / "Dockerfile").read_text()))[-1]
OURS = "shiftwatch:local"
IN_CONTAINER = "/run/secrets/"
# The ports on which the images of others listen.
PORTS = {"db": 5432, "prometheus": 9090, "alertmanager": 9093, "grafana": 3000}

Check = Callable[[Any, dict[str, Path]], Iterator[str]]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return made_secrets(tmp_path_factory.mktemp("compose"))


def complaints(compose: Any, secrets: dict[str, Path]) -> list[str]:
    """All that is wrong with it, service by service."""
    return [complaint for check in CHECKS for complaint in check(compose, secrets)]


def ours(compose: Any) -> dict[str, Any]:
    return {name: one for name, one in compose["services"].items() if one["image"] == OURS}


def runs_once(service: Any) -> bool:
    return bool(service["restart"] == "no")


def command(service: Any) -> list[str]:
    return [*service.get("entrypoint", []), *service.get("command", [])]


def read(service: Any, secrets: dict[str, Path]) -> Settings | str:
    """The settings of one of our services: the image's, then its own."""
    environ = pairs(IMAGE, "ENV") | service["environment"]
    mounted = {IN_CONTAINER + name: secrets[name] for name in service["secrets"] if name in secrets}
    return settings(environ, mounted)


def listens(compose: Any, name: str, secrets: dict[str, Path]) -> int | None:
    """The port on which a service is asked for anything."""
    if name in PORTS:
        return PORTS[name]
    found = read(compose["services"][name], secrets)
    if isinstance(found, str):
        return None
    return {"api": found.port, "worker": found.worker_port}.get(name)


def commands_are_known(compose: Any, secrets: dict[str, Path]) -> Iterator[str]:
    for name, service in ours(compose).items():
        is_demo = service.get("entrypoint") == ["python", "/demo/send.py"]
        argv = service["command"] if is_demo else command(service)
        found = parsed(argv, send.parser) if is_demo else parsed(argv)
        if isinstance(found, str):
            yield f"{name}: {found}"


def settings_are_understood(compose: Any, secrets: dict[str, Path]) -> Iterator[str]:
    for name, service in ours(compose).items():
        if isinstance(found := read(service, secrets), str):
            yield f"{name}: {found}"


def the_database_is_the_one_of_the_url(compose: Any, secrets: dict[str, Path]) -> Iterator[str]:
    url = make_url(secrets["database_url"].read_text().strip())
    environ = compose["services"].get(str(url.host), {}).get("environment", {})
    expected = (environ.get("POSTGRES_USER"), environ.get("POSTGRES_DB"), PORTS["db"])
    if (url.username, url.database, url.port) != expected:
        yield f"the URL is not that of a service: {url!r}"
    if url.password != secrets["database_password"].read_text().strip():
        yield "the URL has another password than the database"


def settings_of_api_and_worker_agree(compose: Any, _: dict[str, Path]) -> Iterator[str]:
    api, worker = (compose["services"][name]["environment"] for name in ("api", "worker"))
    if api != worker:
        yield "the API and the worker have different settings"


def health_is_asked_for(compose: Any, secrets: dict[str, Path]) -> Iterator[str]:
    for name, service in compose["services"].items():
        check = service.get("healthcheck", {})
        if runs_once(service):
            if not check.get("disable"):
                yield f"{name}: ends, and is asked for its health"
        elif not {"test", "interval", "timeout", "retries", "start_period"} <= set(check):
            yield f"{name}: nobody asks for its health"
        elif service["image"] == OURS:
            yield from _asks_its_own_port(compose, name, secrets)
        elif (
            f":{PORTS[name]}" not in (joined := shlex.join(check["test"]))
            and "pg_isready" not in joined
        ):
            yield f"{name}: the health of something else is asked for"


def _asks_its_own_port(compose: Any, name: str, secrets: dict[str, Path]) -> Iterator[str]:
    kind, program, *rest = compose["services"][name]["healthcheck"]["test"]
    options = parsed(rest)
    if isinstance(options, str) or (kind, program) != ("CMD", "shiftwatch"):
        yield f"{name}: {options}"
        return
    asked = options.port or Settings().port
    if asked != listens(compose, name, secrets):
        yield f"{name}: listens on another port than {asked}"


def order_makes_sense(compose: Any, _: dict[str, Path]) -> Iterator[str]:
    for name, service in compose["services"].items():
        for target, how in service.get("depends_on", {}).items():
            if target not in compose["services"]:
                yield f"{name}: waits for {target}, which is not there"
                continue
            other = compose["services"][target]
            possible = "completed_successfully" if runs_once(other) else "healthy"
            if how["condition"] != f"service_{possible}":
                yield f"{name}: waits for {target} to be {how['condition']}"
            if not set(other.get("profiles", [])) <= set(service.get("profiles", [])):
                yield f"{name}: waits for {target}, which is in another profile"


def only_this_machine_gets_in(compose: Any, secrets: dict[str, Path]) -> Iterator[str]:
    for name, service in compose["services"].items():
        for port in service.get("ports", []):
            found = re.fullmatch(r"127\.0\.0\.1:\d+:(\d+)", str(port))
            if found is None:
                yield f"{name}: {port} is open to others"
            elif int(found[1]) != listens(compose, name, secrets):
                yield f"{name}: nothing listens on {found[1]}"


def everything_is_locked_down(compose: Any, _: dict[str, Path]) -> Iterator[str]:
    wanted = {
        "init": True,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "stop_grace_period": "30s",
    }
    for name, service in compose["services"].items():
        for field, value in wanted.items():
            if service.get(field) != value:
                yield f"{name}: {field} is {service.get(field)}"
        for field in ("cap_add", "privileged", "network_mode", "pid"):
            if field in service:
                yield f"{name}: {field}"
        if not re.fullmatch(r"[1-9]\d*:\d+", str(service.get("user", ""))):
            yield f"{name}: runs as {service.get('user')}"
        if not any(str(place).startswith("/tmp:") for place in service.get("tmpfs", [])):
            yield f"{name}: has no /tmp"
        if "mem_limit" not in service or "pids_limit" not in service:
            yield f"{name}: may take everything"


def our_user_is_the_image_s(compose: Any, _: dict[str, Path]) -> Iterator[str]:
    user = next(one.rest for one in IMAGE if one.word == "USER")
    yield from (f"{name}: other user" for name, one in ours(compose).items() if one["user"] != user)


def images_are_exact(compose: Any, _: dict[str, Path]) -> Iterator[str]:
    for name, service in compose["services"].items():
        exact = re.fullmatch(
            r"[\w./-]+:v?\d+(\.\d+)+(-\w+)?(@sha256:[0-9a-f]{64})?", service["image"]
        )
        if service["image"] != OURS and not exact:
            yield f"{name}: {service['image']} is no exact release"
        if service["image"] == OURS and service["build"] != ".":
            yield f"{name}: is built from something else"


def files_are_there(compose: Any, _: dict[str, Path]) -> Iterator[str]:
    named = set()
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source, target, *mode = volume.split(":")
            if not source.startswith("./"):
                named.add(source)
            elif mode != ["ro"]:
                yield f"{name}: {source} can be written to"
            elif not (ROOT / source).exists():
                yield f"{name}: {source} is not there"
            if not target.startswith("/"):
                yield f"{name}: {target} is no place"
    if named != set(compose["volumes"]):
        yield f"volumes used and declared differ: {named ^ set(compose['volumes'])}"


def secrets_are_made_and_used(compose: Any, secrets: dict[str, Path]) -> Iterator[str]:
    used = {name for one in compose["services"].values() for name in one.get("secrets", [])}
    if not used == set(compose["secrets"]) == set(secrets):
        yield f"secrets differ: {sorted(used)}, {sorted(compose['secrets'])}, {sorted(secrets)}"
    for name, secret in compose["secrets"].items():
        if secret != {"file": f"./deploy/compose/secrets/{name}"}:
            yield f"secret {name} is elsewhere: {secret}"
    for name, service in compose["services"].items():
        text = str([command(service), service.get("environment")])
        for wanted in re.findall(rf"{IN_CONTAINER}(\w+)", text):
            if wanted not in service.get("secrets", []):
                yield f"{name}: is not given the secret {wanted}"


def the_database_is_out_of_reach(compose: Any, _: dict[str, Path]) -> Iterator[str]:
    """Of all but those that have a password to it."""
    if compose["networks"]["data"] != {"internal": True}:
        yield "the network of the database is open"
    for name, service in compose["services"].items():
        has_password = any(one.startswith("database_") for one in service.get("secrets", []))
        if ("data" in service.get("networks", ["default"])) != has_password:
            yield f"{name}: is in the network of the database without need, or not with need"
    if compose["services"]["db"]["networks"] != ["data"]:
        yield "the database is in other networks too"


def options_name_what_is_mounted(compose: Any, _: dict[str, Path]) -> Iterator[str]:
    for name in ("prometheus", "alertmanager"):
        service = compose["services"][name]
        targets = {volume.split(":")[1] for volume in service["volumes"]}
        for option in service["command"]:
            place = option.partition("=")[2]
            if place.startswith("/") and place not in targets:
                yield f"{name}: {place} is not mounted"


CHECKS: list[Check] = [
    commands_are_known,
    settings_are_understood,
    the_database_is_the_one_of_the_url,
    settings_of_api_and_worker_agree,
    health_is_asked_for,
    order_makes_sense,
    only_this_machine_gets_in,
    everything_is_locked_down,
    our_user_is_the_image_s,
    images_are_exact,
    files_are_there,
    secrets_are_made_and_used,
    the_database_is_out_of_reach,
    options_name_what_is_mounted,
]


def validated(place: Path) -> subprocess.CompletedProcess[str]:
    checker = Path(sys.executable).with_name("check-jsonschema")
    return subprocess.run(
        [checker, "--builtin-schema", "vendor.compose-spec", place], capture_output=True, text=True
    )


def test_it_is_what_compose_reads() -> None:
    done = validated(ROOT / "docker-compose.yml")

    assert done.returncode == 0, done.stdout
    assert "version" not in COMPOSE


def test_what_compose_does_not_read_is_seen(tmp_path: Path) -> None:
    wrong = copy.deepcopy(COMPOSE)
    wrong["services"]["api"]["read-only"] = True
    (tmp_path / "compose.yml").write_text(yaml.safe_dump(wrong))

    assert validated(tmp_path / "compose.yml").returncode == 1


def test_it_has_the_services_that_were_asked_for() -> None:
    assert set(COMPOSE["services"]) == {
        *("db", "migrate", "admin-key", "scrape-key", "api", "worker"),
        *("prometheus", "alertmanager", "grafana", "demo"),
    }


def test_compose_knows_its_project(secrets: dict[str, Path]) -> None:
    assert complaints(COMPOSE, secrets) == []


MISTAKES: list[tuple[str, Any, str]] = [
    ("services.api.command", ["apis"], "invalid choice: 'apis'"),
    ("services.admin-key.command", ["key", "create"], "--scope"),
    ("services.demo.command", ["--minute"], "demo: "),
    ("services.api.environment.SHIFTWATCH_PUBLICURL", "x", "SHIFTWATCH_PUBLICURL: there is no"),
    ("services.worker.environment.SHIFTWATCH_WORKER_PORT", "http", "SHIFTWATCH_WORKER_PORT: "),
    ("services.worker.environment.SHIFTWATCH_WORKER_PORT", "9465", "another port than 9464"),
    ("services.worker.environment", {}, "different settings"),
    ("services.db.environment.POSTGRES_DB", "other", "not that of a service"),
    ("services.api.healthcheck", {"disable": True}, "api: nobody asks"),
    (
        "services.worker.healthcheck.test",
        ["CMD", "shiftwatch", "healthy"],
        "another port than 8000",
    ),
    ("services.api.healthcheck.test", ["CMD", "curl", "-f", "localhost"], "invalid choice"),
    ("services.grafana.healthcheck.test", ["CMD", "true"], "something else"),
    ("services.migrate.healthcheck", {}, "migrate: ends, and"),
    ("services.api.depends_on.database", {"condition": "service_healthy"}, "is not there"),
    ("services.api.depends_on.db.condition", "service_started", "to be service_started"),
    ("services.worker.depends_on.migrate.condition", "service_healthy", "to be service_healthy"),
    ("services.api.depends_on.grafana", {"condition": "service_healthy"}, "another profile"),
    ("services.api.ports", ["8000:8000"], "8000:8000 is open to others"),
    ("services.api.ports", ["0.0.0.0:8000:8000"], "is open to others"),
    ("services.api.ports", ["127.0.0.1:8000:8080"], "nothing listens on 8080"),
    ("services.api.read_only", False, "api: read_only is False"),
    ("services.db.cap_drop", [], "db: cap_drop"),
    ("services.db.cap_add", ["CHOWN"], "db: cap_add"),
    ("services.grafana.security_opt", None, "grafana: security_opt"),
    ("services.api.user", "shiftwatch", "api: runs as shiftwatch"),
    ("services.db.user", "0:0", "db: runs as 0:0"),
    ("services.api.user", "1000:1000", "api: other user"),
    ("services.worker.tmpfs", [], "worker: has no /tmp"),
    ("services.prometheus.image", "prom/prometheus:latest", "no exact release"),
    ("services.demo.volumes", ["./deploy/demos:/demo:ro"], "./deploy/demos is not there"),
    ("services.demo.volumes", ["./deploy/demo:/demo"], "can be written to"),
    ("volumes.other", None, "{'other'}"),
    ("services.api.secrets", [], "api: is not given the secret database_url"),
    ("secrets.other", {"file": "./x"}, "secret other is elsewhere"),
    ("services.db.networks", ["data", "default"], "in other networks too"),
    ("services.grafana.networks", ["data"], "grafana: is in the network of the database"),
    ("networks.data", {}, "the network of the database is open"),
    ("services.prometheus.command", ["--config.file=/etc/p.yml"], "/etc/p.yml is not mounted"),
]


def mistaken(place: str, value: Any) -> Any:
    # By way of JSON, because services share what they merge in, and a mistake is made in one.
    wrong = json.loads(json.dumps(COMPOSE))
    *path, last = place.split(".")
    inner = wrong
    for name in path:
        inner = inner[name]
    inner[last] = value
    return wrong


@pytest.mark.parametrize(("place", "value", "complaint"), MISTAKES)
def test_a_mistake_is_seen(
    secrets: dict[str, Path], place: str, value: Any, complaint: str
) -> None:
    found = complaints(mistaken(place, value), secrets)

    assert complaint in "\n".join(found)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
def test_every_check_sees_a_mistake(secrets: dict[str, Path], check: Check) -> None:
    assert any(list(check(mistaken(place, value), secrets)) for place, value, _ in MISTAKES)


def test_secrets_stay_out_of_version_control() -> None:
    places = [secret["file"] for secret in COMPOSE["secrets"].values()]

    ignored = subprocess.run(
        ["git", "check-ignore", *places], cwd=ROOT, capture_output=True, text=True
    )

    assert ignored.stdout.split() == places


def test_secrets_are_strong_and_for_their_owner_only(tmp_path: Path) -> None:
    made = made_secrets(tmp_path)

    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    values = [place.read_text().strip() for place in made.values()]
    assert len(set(values)) == len(values)
    assert all(len(value) >= 64 for value in values)
    # The directory is what protects them: containers run as users of their own.
    assert {place.stat().st_mode & 0o777 for place in made.values()} == {0o644}


def test_secrets_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    first = {name: place.read_text() for name, place in made_secrets(tmp_path).items()}
    (tmp_path / "secrets/scrape_key").unlink()
    (tmp_path / "secrets/database_url").unlink()

    again = {name: place.read_text() for name, place in made_secrets(tmp_path).items()}

    assert again["scrape_key"] != first["scrape_key"]
    assert {**again, "scrape_key": ""} == {**first, "scrape_key": ""}


def test_prometheus_asks_services_where_they_listen(secrets: dict[str, Path]) -> None:
    asked = {
        name: discovery["port"]
        for job in PROMETHEUS["scrape_configs"]
        for discovery in job.get("dns_sd_configs", [])
        for name in discovery["names"]
    }
    told = PROMETHEUS["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]

    assert asked == {name: listens(COMPOSE, name, secrets) for name in ("api", "worker")}
    assert told == [f"alertmanager:{PORTS['alertmanager']}"]


def test_prometheus_has_the_key_that_it_shows() -> None:
    jobs = {job["job_name"]: job for job in PROMETHEUS["scrape_configs"]}
    place = jobs["shiftwatch-api"]["authorization"]["credentials_file"]
    creating = parsed(COMPOSE["services"]["scrape-key"]["command"])

    assert place.removeprefix(IN_CONTAINER) in COMPOSE["services"]["prometheus"]["secrets"]
    assert not isinstance(creating, str)
    assert (str(creating.secret_file), creating.scope) == (place, ["read"])


def test_every_setting_has_our_prefix() -> None:
    for service in ours(COMPOSE).values():
        assert all(name.startswith(PREFIX) for name in service["environment"])
