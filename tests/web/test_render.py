"""What is vendored is what it says it is, and templates leave no holes."""

import hashlib
import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from app.web import render

VENDORED = (render.STATIC / "VENDORED.md").read_text()


def test_every_vendored_file_has_its_version_licence_and_checksum() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.+?) \| (.+?) \| `([0-9a-f]{64})` \|$", VENDORED, re.M)

    assert {name for name, *_ in rows} == {"htmx.min.js", "uplot.min.js", "uplot.min.css"}
    for name, what, licence, checksum in rows:
        assert re.search(r"\d+\.\d+\.\d+", what)
        assert licence
        assert hashlib.sha256((render.STATIC / name).read_bytes()).hexdigest() == checksum


def test_a_path_changes_with_its_content() -> None:
    content, _ = render.files()["style.css"]

    assert render.static("style.css").endswith(hashlib.sha256(content).hexdigest()[:12])


def test_a_name_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render.page("failure.html", title="x")


@pytest.mark.parametrize(
    "place", sorted(render.HERE.glob("templates/*.html")), ids=lambda place: place.name
)
def test_templates_have_nothing_inline(place: Path) -> None:
    text = place.read_text()

    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son[a-z]+=|\|\s*safe", text)
