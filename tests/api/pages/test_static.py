"""Styles and scripts."""

from fastapi.testclient import TestClient

from app.web import render


def test_files_are_sent_compressed_to_whoever_can_read_that(client: TestClient) -> None:
    path = render.static("charts.js")
    content, _ = render.files()["charts.js"]

    small = client.get(path, headers={"accept-encoding": "gzip"})
    plain = client.get(path, headers={"accept-encoding": "identity"})

    assert small.content == plain.content == content
    assert small.headers["content-encoding"] == "gzip"
    assert int(small.headers["content-length"]) < len(content) / 2
    assert "content-encoding" not in plain.headers
    assert small.headers["vary"] == plain.headers["vary"] == "accept-encoding"


def test_the_icon_is_where_browsers_look_for_it(client: TestClient) -> None:
    assert client.get("/favicon.ico").headers["content-type"] == "image/svg+xml"


def test_only_files_of_the_page_are_there(client: TestClient) -> None:
    assert client.get("/static/style.css").status_code == 200
    assert client.get("/static/..%2Frender.py").status_code == 404
    assert client.get("/static/nothing.js").status_code == 404
