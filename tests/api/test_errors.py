"""Problems: what goes wrong is told in one form, and never half-done."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import text

from app.api.app import create_app
from app.api.deps import Conn
from app.api.errors import PROBLEMS, problem_of
from app.config import Settings
from app.errors import AppError
from app.ingest import formats
from app.storage.db import Contention, Database, Outage
from tests.conftest import Written
from tests.factories import register

MEMBERS = {"type", "title", "status", "detail", "instance"}


def subclasses(kind: type[AppError]) -> set[type[AppError]]:
    return {one for child in kind.__subclasses__() for one in {child, *subclasses(child)}}


@pytest.fixture
def app(database: Database) -> FastAPI:
    return create_app(Settings(), database)


def serving(app: FastAPI) -> TestClient:
    return TestClient(app, "http://localhost", raise_server_exceptions=False)


def test_every_error_of_ours_has_its_problem() -> None:
    assert set(PROBLEMS) == set(AppError.__subclasses__())


def test_every_kind_of_error_has_the_problem_of_the_one_above() -> None:
    assert {kind: problem_of(kind) for kind in subclasses(AppError)}.keys() >= {Outage, Contention}
    assert problem_of(Outage) is problem_of(Contention)


def test_no_two_problems_share_a_name() -> None:
    assert len({problem.slug for problem in PROBLEMS.values()}) == len(PROBLEMS)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda problem: problem.slug)
def test_every_problem_is_explained_where_its_type_points(client: TestClient, problem: Any) -> None:
    answer = client.get(f"/problems/{problem.slug}")

    assert answer.json() == {
        "type": f"/problems/{problem.slug}",
        "title": problem.title,
        "status": problem.status,
        "meaning": problem.meaning,
    }


def test_what_is_no_problem_is_not_explained(client: TestClient) -> None:
    assert client.get("/problems/nonsense").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/models/nobody", 404),
        ("POST", "/v1/models/nobody", 405),
        ("POST", "/v1/models/nobody/references/v1", 405),
        ("PUT", "/v1/models/nobody", 400),
        ("GET", "/v1/models?limit=0", 422),
        ("GET", "/v1/models/nobody/panes?from=yesterday", 422),
        ("POST", "/v1/models/nobody/predictions?on_error=ignore", 422),
        ("GET", "/broken", 500),
    ],
)
def test_every_refusal_is_a_problem_document(
    app: FastAPI, method: str, path: str, status: int
) -> None:
    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("the secret is 42")

    with serving(app) as client:
        answer = client.request(method, path)

    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert found.keys() - {"errors"} == MEMBERS
    assert found["status"] == status
    assert all(found[member] for member in MEMBERS)


def test_a_wrong_method_is_told_the_right_ones(client: TestClient) -> None:
    answer = client.post("/v1/keys/1")

    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE")


def test_a_bug_tells_no_more_than_where_to_look(app: FastAPI) -> None:
    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("the secret is 42")

    with serving(app) as client:
        answer = client.get("/broken", headers={"x-request-id": "req-7"})

    assert "secret" not in answer.text
    assert "req-7" in answer.json()["detail"]


def test_a_bug_is_logged_with_the_id_of_its_request(app: FastAPI, written: Written) -> None:
    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("the secret is 42")

    with serving(app) as client:
        client.get("/broken", headers={"x-request-id": "req-7"})

    (line,) = written.of("bug")
    assert (line["level"], line["request_id"], line["path"]) == ("error", "req-7", "/broken")
    assert "RuntimeError" in line["exception"]


@pytest.mark.parametrize("path", ["/livez", "/v1/models", "/nowhere", "/v1/models?limit=0"])
def test_the_id_of_a_request_is_echoed(client: TestClient, path: str) -> None:
    answer = client.get(path, headers={"x-request-id": "req-7.a_B"})

    assert answer.headers["x-request-id"] == "req-7.a_B"


def test_even_a_bug_answers_with_the_id_of_its_request(app: FastAPI) -> None:
    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("the secret is 42")

    with serving(app) as client:
        answer = client.get("/broken", headers={"x-request-id": "req-7"})

    assert answer.headers["x-request-id"] == "req-7"


@pytest.mark.parametrize("given", [None, "", "x" * 65, "a b", "a\tb", "ä"])
def test_a_request_without_a_sane_id_is_given_one(client: TestClient, given: str | None) -> None:
    headers = [] if given is None else [(b"x-request-id", given.encode("latin-1"))]

    answer = client.get("/livez", headers=headers)

    assert re.fullmatch(r"[0-9a-f-]{36}", answer.headers["x-request-id"])


def test_the_instance_of_a_problem_is_its_request(client: TestClient) -> None:
    answer = client.get("/nowhere")

    assert answer.json()["instance"] == f"urn:uuid:{answer.headers['x-request-id']}"


# Not base64, not JSON, not a list, of another list, and with what no database takes.
CURSORS = ["!", "bm9wZQ", "e30", "W10", "WzFd", "WzEsIDJd", "WyJhIiwgImIiXQ", "WyJcdTAwMDAiXQ"]
CURSORS += ["WyIyMDI2LTExLTE3IiwgIlx1MDAwMCJd", "ü"]


@pytest.mark.parametrize("cursor", CURSORS)
@pytest.mark.parametrize("path", ["", "/fraud/references", "/fraud/panes"])
def test_a_cursor_is_the_callers_mistake_or_none(
    client: TestClient, path: str, cursor: str
) -> None:
    register(client)

    answer = client.get(f"/v1/models{path}", params={"cursor": cursor})

    assert answer.status_code in (200, 422), answer.text


@pytest.mark.parametrize(
    "query",
    [
        "to=0001-01-01T00:00:00Z",
        "from=9999-12-31T23:59:59Z",
        "from=2026-11-17T10:00:00",
        "from=2026-11-17T10:00:00Z&to=2026-11-17T10:00:00Z",
        "version=a%00b",
    ],
)
def test_an_odd_span_of_time_is_the_callers_mistake(client: TestClient, query: str) -> None:
    register(client)

    answer = client.get(f"/v1/models/fraud/panes?{query}")

    assert answer.status_code in (200, 422), answer.text


@pytest.mark.parametrize(
    "body",
    [{"predicted": [0], "batch_id": "a\0b"}, {"predicted": [0], "ids": ["a\0b"]}],
)
def test_what_no_database_can_store_is_the_callers_mistake(client: TestClient, body: Any) -> None:
    register(client, keep_ids=True)

    answer = client.post("/v1/models/fraud/predictions", json=body)

    assert answer.status_code == 422, answer.text


@pytest.mark.parametrize("name", ["a%00b", "a%20b", "%2E%2E", "x" * 101])
def test_a_batch_for_a_name_that_no_model_can_have_is_refused(
    client: TestClient, name: str
) -> None:
    answer = client.post(f"/v1/models/{name}/predictions", json={"predicted": [0]})

    assert answer.status_code in (404, 422), answer.text


def test_what_was_not_committed_is_not_acknowledged(app: FastAPI) -> None:
    @app.post("/doomed", status_code=201)
    def doomed(conn: Conn) -> str:
        # The constraint is looked at when the transaction ends: it is the commit that fails.
        conn.execute(text("CREATE TEMP TABLE doomed (x int UNIQUE DEFERRABLE INITIALLY DEFERRED)"))
        conn.execute(text("INSERT INTO doomed VALUES (1), (1)"))
        return "done"

    with serving(app) as client:
        answer = client.post("/doomed")

    assert answer.status_code == 500


def test_a_database_that_is_away_is_a_reason_to_come_back(database: Database) -> None:
    away = Database("postgresql+psycopg://nobody@127.0.0.1:1/nothing")

    with serving(create_app(Settings(auth="off"), away)) as client:
        answer = client.get("/v1/models")

    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["type"] == "/problems/unavailable"


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a JSON document."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from parts(part)


@pytest.fixture
def openapi(client: TestClient) -> Any:
    return client.get("/openapi.json").json()


def test_the_openapi_refers_to_nothing_that_is_not_there(openapi: Any) -> None:
    for part in parts(openapi):
        if isinstance(part.get("$ref"), str):
            found = openapi
            for name in part["$ref"].removeprefix("#/").split("/"):
                assert name in found, part["$ref"]
                found = found[name]


def test_the_openapi_is_complete_in_form(openapi: Any) -> None:
    assert openapi["openapi"].startswith("3.1")
    operations = [
        (path, operation) for path, item in openapi["paths"].items() for operation in item.values()
    ]
    ids = [operation["operationId"] for _, operation in operations]
    assert len(ids) == len(set(ids))
    for path, operation in operations:
        declared = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
        assert declared == set(re.findall(r"{(\w+)}", path)), path
        for status, response in operation["responses"].items():
            assert re.fullmatch(r"[1-5](\d\d|XX)|default", status), path
            assert response["description"], path


def test_the_openapi_tells_of_problems_everywhere(openapi: Any) -> None:
    for path, item in openapi["paths"].items():
        for operation in item.values():
            assert "application/problem+json" in operation["responses"]["4XX"]["content"], path
            assert "422" not in operation["responses"], path


def test_the_openapi_documents_the_body_of_a_batch(openapi: Any) -> None:
    post = openapi["paths"]["/v1/models/{model}/predictions"]["post"]

    schema = post["requestBody"]["content"]["application/json"]["schema"]

    assert schema["properties"].keys() == {
        "predicted",
        "probabilities",
        "timestamps",
        "timestamp",
        "ids",
        "rows",
        "version",
        "batch_id",
    }
    parameters = {one["name"].lower() for one in post["parameters"]}
    assert parameters == {"model", "on_error", "version", "idempotency-key"}
    assert post["requestBody"]["content"].keys() == set(formats.SCHEMAS)


def test_the_openapi_documents_the_body_of_a_reference(openapi: Any) -> None:
    put = openapi["paths"]["/v1/models/{model}/references/{version}"]["put"]

    schema = put["requestBody"]["content"]["application/json"]["schema"]

    assert schema["properties"].keys() == {
        "confusion",
        "orientation",
        "predicted",
        "probabilities",
        "actual",
        "activate",
    }
    assert put["requestBody"]["content"].keys() == {formats.JSON, formats.ARROW, formats.PARQUET}
