"""The pages of webhooks: made, tried, turned off, forgotten, and what became of each notice."""

import logging
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.errors import Conflict
from app.storage import deliveries, webhooks
from app.storage.db import Connection, Database
from app.storage.deliveries import Delivered, GaveUp, RetryAt
from app.storage.keys import Scope
from app.storage.webhooks import Webhook
from tests.api.pages.browser import EVIL, post, signed_in

PLACE = "https://receiver.example/hook"
CHAT = "https://hooks.slack.example/services/T0/B0/secretpart"
ROUTING_KEY = "R0123456789abcdefR0123456789abcd"


def made(client: TestClient, url: str = PLACE, **fields: Any) -> Any:
    return post(client, "/webhooks", {"url": url, **fields})


def secret_in(text: str) -> str:
    (found,) = re.findall(r'value="(whsec_[^"]+)"', text)
    return str(found).replace("&#43;", "+")


def the_webhook(database: Database) -> Webhook:
    (found,) = all_webhooks(database)
    return found


def all_webhooks(database: Database) -> list[Webhook]:
    with database.begin() as conn:
        return webhooks.page(conn, None, 100)


def settle(database: Database, outcome: deliveries.Outcome) -> None:
    with database.begin() as conn:
        claimed = deliveries.claim(conn, datetime.now(UTC), timedelta(seconds=60))
        assert claimed is not None
        deliveries.settle(conn, claimed, outcome, datetime.now(UTC))


def buttons(text: str) -> set[str]:
    return set(re.findall(r'action="/((?:webhooks|deliveries)[^"]*)"', text))


def test_without_webhooks_the_list_says_so(client: TestClient) -> None:
    page = client.get("/webhooks")

    assert page.status_code == 200
    assert "Nobody is told" in page.text


def test_a_webhook_is_made_and_its_secret_shown_once(
    client: TestClient, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = made(client, events=["alarm.resolved", "alarm.firing"], shape="cloudevents")
        own = the_webhook(database)
        later = [client.get(path).text for path in ("/webhooks", f"/webhooks/{own.id}")]

    assert answer.status_code == 201
    assert "location" not in answer.headers
    assert secret_in(answer.text) == own.secret
    assert answer.text.count(own.secret.removeprefix("whsec_")[:20]) == 1
    assert (own.url, own.shape) == (PLACE, "cloudevents")
    assert own.events == {"alarm.resolved", "alarm.firing"}
    assert all("whsec_" not in text and PLACE in text for text in later)
    assert "whsec_" not in caplog.text


def test_nothing_but_the_address_has_to_be_said(client: TestClient, database: Database) -> None:
    made(client, f" {PLACE} ")

    own = the_webhook(database)
    assert own.url == PLACE
    assert own.events == {"alarm.firing", "alarm.resolved", "alarm.revised"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"url": ""}, "at least 1 character"),
        ({"url": "ftp://x"}, "must be an https address"),
        ({"url": "https://169.254.169.254/"}, "the URL"),
        ({"url": PLACE, "shape": "pagerduty"}, "needs the routing key"),
        ({"url": PLACE, "routing_key": ROUTING_KEY}, "has no routing key"),
        ({"url": PLACE, "shape": "odd"}, "Input should be"),
        ({"url": PLACE, "events": ["odd"]}, "Input should be"),
    ],
)
def test_what_is_wrong_with_the_form_is_said_and_what_was_typed_is_kept(
    client: TestClient, database: Database, fields: dict[str, Any], says: str
) -> None:
    answer = post(client, "/webhooks", fields)

    assert answer.status_code == 422
    assert says in answer.text
    assert f'value="{fields["url"]}"' in answer.text
    assert ROUTING_KEY not in answer.text
    assert all_webhooks(database) == []


def test_a_routing_key_is_kept_and_never_shown(client: TestClient, database: Database) -> None:
    answer = made(client, shape="pagerduty", routing_key=ROUTING_KEY)

    own = the_webhook(database)
    page = client.get(f"/webhooks/{own.id}").text
    assert own.routing_key == ROUTING_KEY
    assert ROUTING_KEY not in answer.text + page


def test_of_a_chat_only_the_host_is_shown(client: TestClient, database: Database) -> None:
    answer = made(client, CHAT, shape="slack")

    own = the_webhook(database)
    texts = [
        answer.text,
        *(client.get(path).text for path in ("/webhooks", f"/webhooks/{own.id}")),
    ]
    assert all("secretpart" not in text and "hooks.slack.example/…" in text for text in texts)


def test_a_new_secret_is_shown_once_and_the_old_one_signs_for_a_while(
    client: TestClient, database: Database
) -> None:
    made(client)
    before = the_webhook(database)

    answer = post(client, f"/webhooks/{before.id}/rotate")

    own = the_webhook(database)
    assert answer.status_code == 200
    assert secret_in(answer.text) == own.secret != before.secret
    assert own.old_secret == before.secret
    page = client.get(f"/webhooks/{own.id}").text
    assert "whsec_" not in page
    assert "Old secret" in page


def test_a_webhook_is_tried_disabled_enabled_and_deleted(
    client: TestClient, database: Database
) -> None:
    signed_in(client, database, Scope.ADMIN, name="ada")
    made(client)
    own = the_webhook(database)

    tried = post(client, f"/webhooks/{own.id}/test")
    after_the_test = client.get(tried.headers["location"]).text
    post(client, f"/webhooks/{own.id}/disable")
    disabled = the_webhook(database)
    page = client.get(f"/webhooks/{own.id}").text
    refused = post(client, f"/webhooks/{own.id}/test")
    post(client, f"/webhooks/{own.id}/enable")
    enabled = the_webhook(database)
    deleted = post(client, f"/webhooks/{own.id}/delete")

    assert "A test is on its way" in after_the_test
    assert (disabled.disabled_because, enabled.disabled_at) == ("disabled by ada", None)
    assert "disabled by ada" in page
    assert f"/webhooks/{own.id}/test" not in page
    assert refused.status_code == 409
    assert deleted.headers["location"] == "/webhooks?done=deleted"
    assert all_webhooks(database) == []


def test_the_list_says_how_each_webhook_is_doing(client: TestClient, database: Database) -> None:
    made(client)
    own = the_webhook(database)
    for _ in range(3):
        post(client, f"/webhooks/{own.id}/test")
    settle(database, Delivered(204))
    settle(database, GaveUp("no"))

    page = client.get("/webhooks").text

    assert re.findall(r'<td class="num">(\d+)</td>', page) == ["1", "1"]


def test_deliveries_are_listed_with_what_went_wrong_and_sent_again(
    client: TestClient, database: Database
) -> None:
    made(client)
    own = the_webhook(database)
    post(client, f"/webhooks/{own.id}/test")
    settle(database, GaveUp(f"refused {EVIL}", 500))
    page = client.get(f"/webhooks/{own.id}").text
    (replay,) = [one for one in buttons(page) if one.startswith("deliveries")]

    answer = post(client, f"/{replay}")

    with database.begin() as conn:
        (one,) = deliveries.page(conn, own.id, None, None, 10)
    assert "given up" in page
    assert "500: refused &lt;script&gt;" in page
    assert EVIL not in page
    assert answer.headers["location"] == f"/webhooks/{own.id}?done=replayed"
    assert (one.state, one.attempts) == ("pending", 0)
    assert post(client, f"/{replay}").status_code == 409


def test_deliveries_have_pages_and_can_be_narrowed(client: TestClient, database: Database) -> None:
    made(client)
    own = the_webhook(database)
    for _ in range(55):
        post(client, f"/webhooks/{own.id}/test")
    settle(database, RetryAt(datetime.now(UTC) + timedelta(minutes=5), "away"))

    first = client.get(f"/webhooks/{own.id}").text
    (older,) = re.findall(r'rel="next" href="([^"]+)"', first)
    second = client.get(older.replace("&amp;", "&")).text
    dead = client.get(f"/webhooks/{own.id}?state=dead").text

    assert [text.count('<th scope="row">') for text in (first, second, dead)] == [50, 5, 0]
    assert "away" in second
    assert "None like that" in dead


def test_a_long_list_of_webhooks_has_pages(client: TestClient) -> None:
    for i in range(22):
        made(client, f"{PLACE}/{i}")

    first = client.get("/webhooks").text
    (more,) = re.findall(r'rel="next" href="([^"]+)"', first)

    assert client.get(more).text.count('<th scope="row"') == 2


def test_who_may_only_read_sees_no_buttons_and_is_refused(
    client: TestClient, database: Database
) -> None:
    made(client)
    own = the_webhook(database)
    post(client, f"/webhooks/{own.id}/test")
    settle(database, GaveUp("no"))
    signed_in(client, database, Scope.READ)

    pages = [client.get(path).text for path in ("/webhooks", f"/webhooks/{own.id}")]
    answers = [made(client), post(client, "/deliveries/1/replay")] + [
        post(client, f"/webhooks/{own.id}/{action}")
        for action in ("test", "rotate", "disable", "enable", "delete")
    ]

    assert [buttons(text) for text in pages] == [set(), set()]
    assert [answer.status_code for answer in answers] == [403] * 7
    assert the_webhook(database) == own


def test_what_fails_half_way_is_undone(
    client: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client)
    own = the_webhook(database)
    forget = webhooks.forget

    def half_way(conn: Connection, webhook_id: int) -> None:
        forget(conn, webhook_id)
        raise Conflict("something is in the way")

    monkeypatch.setattr(webhooks, "forget", half_way)
    answer = post(client, f"/webhooks/{own.id}/delete")

    assert answer.status_code == 409
    assert "something is in the way" in answer.text
    assert the_webhook(database) == own
    monkeypatch.undo()
    post(client, f"/webhooks/{own.id}/delete")
    assert all_webhooks(database) == []
