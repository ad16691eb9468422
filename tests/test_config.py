"""Settings from the environment: all of it understood, or no start."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from app.config import BadSettings, Settings

SECRET = "hunter2"
URL = f"postgresql://me:{SECRET}@db.example.org/shiftwatch"


def message(environ: dict[str, str]) -> str:
    with pytest.raises(BadSettings) as caught:
        Settings.from_env(environ)
    return str(caught.value)


def database_url(settings: Settings) -> str | None:
    return None if settings.database_url is None else settings.database_url.get_secret_value()


def test_without_anything_there_are_defaults() -> None:
    assert Settings.from_env({}) == Settings()


def test_what_is_not_ours_is_left_alone() -> None:
    environ = {"PATH": "/bin", "SHIFTWATCHER_PORT": "x", "shiftwatch_port": "x"}

    assert Settings.from_env(environ) == Settings()


def test_settings_come_from_the_environment() -> None:
    environ = {
        "SHIFTWATCH_PORT": "9000",
        "SHIFTWATCH_HOST": "0.0.0.0",
        "SHIFTWATCH_AUTH": "off",
        "SHIFTWATCH_DATA_DIR": "/var/lib/shiftwatch",
    }

    found = Settings.from_env(environ)

    assert (found.port, found.host, found.auth, found.data_dir) == (
        9000,
        "0.0.0.0",
        "off",
        Path("/var/lib/shiftwatch"),
    )


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_database_url_is_given_our_driver(scheme: str) -> None:
    found = Settings.from_env({"SHIFTWATCH_DATABASE_URL": f"{scheme}://me@db/name"})

    assert database_url(found) == "postgresql+psycopg://me@db/name"


@pytest.mark.parametrize("url", ["mysql://me@db/name", "db.example.org", "://", ""])
def test_another_database_is_refused(url: str) -> None:
    assert "SHIFTWATCH_DATABASE_URL" in message({"SHIFTWATCH_DATABASE_URL": url})


@pytest.mark.parametrize("url", ["collector:4318", "grpc://collector:4317", ""])
def test_traces_go_by_http(url: str) -> None:
    assert "must start with http" in message({"SHIFTWATCH_OTLP_ENDPOINT": url})


def test_a_value_can_be_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{URL}\n")

    found = Settings.from_env({"SHIFTWATCH_DATABASE_URL_FILE": str(tmp_path / "url")})

    assert database_url(found) == URL.replace("postgresql://", "postgresql+psycopg://")


def test_any_setting_can_be_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "port").write_text("9000\n")

    assert Settings.from_env({"SHIFTWATCH_PORT_FILE": str(tmp_path / "port")}).port == 9000


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")

    found = message({"SHIFTWATCH_DATABASE_URL_FILE": missing})

    assert "SHIFTWATCH_DATABASE_URL_FILE" in found
    assert missing in found


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "url").write_bytes(b"\xff\xfe\x00")

    found = message({"SHIFTWATCH_DATABASE_URL_FILE": str(tmp_path / "url")})

    assert "SHIFTWATCH_DATABASE_URL_FILE" in found


def test_a_setting_is_given_once(tmp_path: Path) -> None:
    (tmp_path / "port").write_text("9000")

    found = message({"SHIFTWATCH_PORT": "8000", "SHIFTWATCH_PORT_FILE": str(tmp_path / "port")})

    assert "twice" in found


@pytest.mark.parametrize("name", ["SHIFTWATCH_PROT", "SHIFTWATCH_", "SHIFTWATCH_PORTS"])
def test_an_unknown_name_stops_the_start(name: str) -> None:
    assert name in message({name: "8000"})


def test_an_unknown_name_of_a_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "value").write_text("x")

    assert "SHIFTWATCH_PROT_FILE" in message({"SHIFTWATCH_PROT_FILE": str(tmp_path / "value")})


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    environ = {
        "SHIFTWATCH_AUTH": "maybe",
        "SHIFTWATCH_COLOUR": "green",
        "SHIFTWATCH_DATABASE_URL": "mysql://x",
        "SHIFTWATCH_LOG_LEVEL_FILE": str(tmp_path / "missing"),
        "SHIFTWATCH_POOL_SIZE": "0",
        "SHIFTWATCH_PORT": "http",
    }

    lines = message(environ).splitlines()

    assert sorted(line.partition(":")[0] for line in lines) == sorted(environ)


@pytest.mark.parametrize(
    "environ",
    [
        {"SHIFTWATCH_DATABASE_URL": f"mysql://me:{SECRET}@db/name"},
        {"SHIFTWATCH_DATABASE_URL": SECRET},
        {"SHIFTWATCH_DATABASE_URL": URL, "SHIFTWATCH_PORT": "http"},
        {"SHIFTWATCH_PORT": SECRET},
        {"SHIFTWATCH_AUTH": SECRET},
        {"SHIFTWATCH_PASSWORD": SECRET},
        # The mistake that everybody makes once: the value where a path belongs.
        {"SHIFTWATCH_DATABASE_URL_FILE": URL},
    ],
)
def test_no_message_tells_a_value_that_may_be_secret(environ: dict[str, str]) -> None:
    assert SECRET not in message(environ)


def test_settings_can_be_printed_without_their_secret() -> None:
    settings = Settings.from_env({"SHIFTWATCH_DATABASE_URL": URL})

    assert SECRET not in f"{settings!r} {settings} {settings.model_dump_json()}"


def test_options_go_before_the_environment() -> None:
    found = Settings.from_env({"SHIFTWATCH_PORT": "8000", "SHIFTWATCH_HOST": "::1"}, port=9000)

    assert (found.port, found.host) == (9000, "::1")


def test_options_that_were_not_given_leave_the_environment_alone() -> None:
    assert Settings.from_env({"SHIFTWATCH_PORT": "9000"}, port=None).port == 9000


def test_an_option_mends_what_the_environment_got_wrong() -> None:
    assert Settings.from_env({"SHIFTWATCH_PORT": "http"}, port=9000).port == 9000


@pytest.mark.parametrize("port", ["-1", "65536", "80.5", "", "8000 9000"])
def test_a_port_is_a_port(port: str) -> None:
    assert "SHIFTWATCH_PORT" in message({"SHIFTWATCH_PORT": port})


def test_settings_do_not_change() -> None:
    settings = Settings()

    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 9000


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_only_this_machine_reaches_a_loopback_address(host: str, loopback: bool) -> None:
    assert Settings(host=host).loopback is loopback


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"SHIFTWATCH_PORT": "9000"}, "http://127.0.0.1:9000"),
        ({"SHIFTWATCH_HOST": "::1"}, "http://[::1]:8000"),
        ({"SHIFTWATCH_PUBLIC_URL": "https://shift.example.com/"}, "https://shift.example.com"),
    ],
)
def test_links_begin_with_where_people_reach_the_service(
    environ: dict[str, str], root: str
) -> None:
    assert Settings.from_env(environ).root_url == root
