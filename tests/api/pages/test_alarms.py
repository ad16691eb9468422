"""The pages of alarms: what they say, and what their buttons do."""

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.api import deps
from app.domain.alarm import Alarm, AlarmKind, AlarmState, Severity, Silence
from app.domain.model import AlarmPolicy
from app.domain.notice import Event, Shape
from app.domain.verdict import Verdict
from app.stats.reference import Reference
from app.storage import alarms, silences, webhooks
from app.storage.db import Database
from app.storage.keys import Scope
from app.storage.tables import delivery
from tests.api.pages.browser import EVIL, post, signed_in
from tests.evaluate.simulation import Life, life, quiet
from tests.factories import CONFUSION

REFERENCE = Reference(np.array(CONFUSION))
OTHER_MIX = [0.6, 0.3, 0.1]


@pytest.fixture
def shifted(client: TestClient, database: Database) -> Life:
    """A model whose mix has changed four minutes ago; the page goes by its clock."""
    rng = np.random.default_rng(20261118)
    one = life(
        database,
        REFERENCE,
        alarm=AlarmPolicy(overdispersion=1.0),
        labels=(f"legit{EVIL}", "fraud", "abuse"),
    )
    one.live(quiet(REFERENCE, 100, 30, rng))
    one.live(rng.multinomial(100, OTHER_MIX, size=4))
    client.app.dependency_overrides[deps.now] = lambda: one.now  # type: ignore[attr-defined]
    return one


def the_alarm(database: Database) -> Alarm:
    with database.begin() as conn:
        return alarms.page(conn)[0].alarm


def changes(database: Database) -> list[tuple[str, str | None, str | None]]:
    with database.begin() as conn:
        (owned,) = alarms.page(conn)
        return [(one.event, one.by, one.note) for one in alarms.history(conn, owned)]


def another(database: Database, one: Life, **changes_: object) -> Alarm:
    """An alarm of the same model as somebody might find it."""
    with database.begin() as conn:
        new = Alarm(
            kind=AlarmKind.ASSUMPTION,
            version="v1",
            state=AlarmState.FIRING,
            severity=Severity.CRITICAL,
            verdict=Verdict.NOT_LABEL_SHIFT,
            reason="because",
            since=one.now,
        )
        return alarms.put(conn, one.model.id, replace(new, **changes_))  # type: ignore[arg-type]


def path(database: Database) -> str:
    return f"/alarms/{the_alarm(database).id}"


def forms(text: str) -> set[str]:
    """What the buttons of a page do."""
    return set(re.findall(r'action="/(?:alarms|silences)/\d+/(\w+)"', text))


# The list.


def test_without_alarms_the_list_says_so(client: TestClient) -> None:
    page = client.get("/alarms")

    assert page.status_code == 200
    assert "No alarms" in page.text


def test_open_alarms_come_first_then_the_newest(
    client: TestClient, database: Database, shifted: Life
) -> None:
    over = {"state": AlarmState.RESOLVED, "resolved_at": shifted.now}
    ids = [another(database, shifted, **over).id for _ in range(2)]

    found = re.findall(r'href="/alarms/(\d+)"', client.get("/alarms").text)

    assert [int(one) for one in found] == [the_open(database), ids[1], ids[0]]


def the_open(database: Database) -> int | None:
    with database.begin() as conn:
        return alarms.page(conn, state=AlarmState.FIRING)[0].alarm.id


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("state=&kind=&model=", 2),
        ("state=firing", 2),
        ("state=resolved", 0),
        ("kind=assumption", 1),
        ("model=M", 2),
        ("model=%25", 0),
        ("model=other", 0),
    ],
)
def test_the_list_can_be_narrowed(
    client: TestClient, database: Database, shifted: Life, query: str, count: int
) -> None:
    another(database, shifted)

    text = client.get(f"/alarms?{query}").text

    assert len(re.findall(r'href="/alarms/\d+"', text)) == count
    assert ("No alarm is like that" in text) is (count == 0)


def test_a_long_list_has_pages(client: TestClient, database: Database, shifted: Life) -> None:
    for _ in range(60):
        another(database, shifted, state=AlarmState.RESOLVED, resolved_at=shifted.now)

    first, second = client.get("/alarms").text, client.get("/alarms?page=2").text

    assert "61 alarms, page 1 of 2" in first
    assert 'rel="next"' in first
    assert len(re.findall(r'href="/alarms/\d+"', second)) == 11


# One alarm.


def test_an_alarm_is_explained(client: TestClient, database: Database, shifted: Life) -> None:
    text = client.get(path(database)).text

    assert "The mix of what m predicts has changed" in text
    assert "at most once in a million years; once in 30 days is enough" in text
    assert "Send softmax rows" in text
    assert "1 Nov 00:30 UTC" in text
    assert "Shiftwatch" in text
    assert "alarm raised" in text


@pytest.mark.parametrize(
    ("kind", "verdict", "says", "says_not"),
    [
        (AlarmKind.SHIFT, Verdict.LABEL_SHIFT, "format=csv", "Do not act on q"),
        (AlarmKind.ASSUMPTION, Verdict.NOT_LABEL_SHIFT, "Do not act on q", "format=csv"),
        (AlarmKind.INGEST_STOPPED, None, "Check the sender", "format=csv"),
        (AlarmKind.NO_DATA, None, "Check the sender", "Do not act on q"),
    ],
)
def test_what_to_do_next_fits_the_alarm(
    client: TestClient,
    database: Database,
    shifted: Life,
    kind: AlarmKind,
    verdict: Verdict | None,
    says: str,
    says_not: str,
) -> None:
    one = another(database, shifted, kind=kind, verdict=verdict, version="v2")

    page = client.get(f"/alarms/{one.id}")

    assert page.status_code == 200
    assert says in page.text
    assert says_not not in page.text


def test_the_weights_of_an_alarm_can_be_downloaded(
    client: TestClient, database: Database, shifted: Life
) -> None:
    links = re.findall(r'href="(/v1/models/[^"]+)" download', client.get(path(database)).text)

    answers = [client.get(link.replace("&amp;", "&")) for link in links]

    assert [one.headers["content-type"].split(";")[0] for one in answers] == [
        "text/csv",
        "application/json",
    ]
    assert answers[1].json()["applied"]


def test_there_is_no_page_of_an_alarm_that_is_not(client: TestClient) -> None:
    page = client.get("/alarms/7")

    assert page.status_code == 404
    assert page.headers["content-type"].startswith("text/html")


def test_who_is_told_of_an_alarm_is_led_to_its_page(
    client: TestClient, database: Database, shifted: Life
) -> None:
    with database.begin() as conn:
        events = [Event.FIRING]
        webhooks.create(conn, "https://x.example", events, Shape.STANDARD, shifted.now)

    shifted.live(np.random.default_rng(2).multinomial(100, OTHER_MIX, size=300))

    with database.begin() as conn:
        notices = conn.execute(select(delivery.c.notice)).scalars().all()
    assert [one["data"]["links"]["page"] for one in notices] == [
        f"http://localhost{path(database)}"
    ]
    assert client.get(path(database)).status_code == 200


# What people do.


@pytest.mark.parametrize(
    ("action", "state", "event"),
    [
        ("acknowledge", AlarmState.ACKNOWLEDGED, "alarm.acknowledged"),
        ("resolve", AlarmState.RESOLVED, "alarm.resolved"),
        ("accept", AlarmState.RESOLVED, "alarm.resolved"),
    ],
)
def test_a_button_does_what_it_says_and_the_history_says_who_it_was(
    client: TestClient,
    database: Database,
    shifted: Life,
    action: str,
    state: AlarmState,
    event: str,
) -> None:
    signed_in(client, database, Scope.ADMIN, name="ada")

    answer = post(client, f"{path(database)}/{action}", {"note": "looking"})
    page = client.get(answer.headers["location"]).text

    assert answer.status_code == 303
    assert the_alarm(database).state is state
    assert changes(database)[-1] == (event, "ada", "looking")
    assert '<p class="told"' in page
    assert "<td>ada</td>" in page
    assert "<td>looking</td>" in page


def test_an_accepted_mix_is_what_alarms_go_by(
    client: TestClient, database: Database, shifted: Life
) -> None:
    post(client, f"{path(database)}/accept")

    shifted.live(np.random.default_rng(1).multinomial(100, OTHER_MIX, size=60))

    assert the_alarm(database).state is AlarmState.RESOLVED


def silences_of(database: Database, now: datetime) -> list[Silence]:
    with database.begin() as conn:
        return silences.current(conn, now)


@pytest.mark.parametrize(("name", "hours"), [("1 h", 1), ("4 h", 4), ("24 h", 24), ("7 d", 7 * 24)])
def test_an_alarm_can_be_silenced_for_a_while(
    client: TestClient, database: Database, shifted: Life, name: str, hours: int
) -> None:
    signed_in(client, database, Scope.ADMIN, name="ada")

    answer = post(client, f"{path(database)}/silence", {"for": name, "reason": "known"})

    (one,) = silences_of(database, shifted.now)
    assert answer.status_code == 303
    assert (one.by, one.reason) == ("ada", "known")
    assert one.until == shifted.now + timedelta(hours=hours)
    assert one.covers("m", the_alarm(database), shifted.now)
    assert not one.covers("other", the_alarm(database), shifted.now)


@pytest.mark.parametrize("given", [{}, {"for": "99 y"}, {"for": "1 h", "reason": "x" * 2001}])
def test_a_silence_that_makes_no_sense_is_not_kept(
    client: TestClient, database: Database, shifted: Life, given: dict[str, str]
) -> None:
    answer = post(client, f"{path(database)}/silence", given)

    assert answer.status_code == 422
    assert 'class="problem"' in answer.text
    assert silences_of(database, shifted.now) == []


@pytest.mark.parametrize("where", ["list", "alarm"])
def test_a_silence_can_be_ended(
    client: TestClient, database: Database, shifted: Life, where: str
) -> None:
    own = path(database)
    post(client, f"{own}/silence", {"for": "1 h", "reason": EVIL})
    (one,) = silences_of(database, shifted.now)
    page = client.get("/alarms" if where == "list" else own).text
    assert f'action="/silences/{one.id}/end"' in page
    assert EVIL not in page

    fields = {} if where == "list" else {"alarm": own.removeprefix("/alarms/")}
    answer = post(client, f"/silences/{one.id}/end", fields)

    assert answer.headers["location"] == ("/alarms" if where == "list" else own) + "?done=ended"
    assert silences_of(database, shifted.now) == []


def test_a_note_too_long_is_kept_in_the_form_and_nowhere_else(
    client: TestClient, database: Database, shifted: Life
) -> None:
    note = "n" * 2001

    answer = post(client, f"{path(database)}/acknowledge", {"note": note})

    assert answer.status_code == 422
    assert f'value="{note}"' in answer.text
    assert the_alarm(database).state is AlarmState.FIRING


def test_a_note_that_cannot_be_stored_is_refused(
    client: TestClient, database: Database, shifted: Life
) -> None:
    answer = post(client, f"{path(database)}/acknowledge", {"note": "a\x00b"})

    assert answer.status_code == 422
    assert the_alarm(database).state is AlarmState.FIRING


@pytest.mark.parametrize("note", ["a\x00b", "\ud800"])
def test_neither_is_it_taken_through_the_api(
    client: TestClient, database: Database, shifted: Life, note: str
) -> None:
    content = json.dumps({"note": note})
    headers = {"content-type": "application/json"}

    answer = client.post(f"/v1{path(database)}/acknowledge", content=content, headers=headers)

    assert answer.status_code in (400, 422)
    assert the_alarm(database).state is AlarmState.FIRING


def test_what_is_over_cannot_be_resolved_again(
    client: TestClient, database: Database, shifted: Life
) -> None:
    post(client, f"{path(database)}/resolve")

    answer = post(client, f"{path(database)}/resolve", referer=f"http://localhost{path(database)}")

    assert answer.status_code == 409
    assert "is over since" in answer.text
    assert f'href="{path(database)}">Back' in answer.text
    assert forms(client.get(path(database)).text) == set()


# Which buttons there are.


def test_there_are_buttons_for_what_can_be_done(
    client: TestClient, database: Database, shifted: Life
) -> None:
    blind = another(database, shifted, kind=AlarmKind.INGEST_STOPPED, verdict=None)
    odd = another(database, shifted)

    own, stopped, strange = (
        forms(client.get(f"/alarms/{one}").text)
        for one in (int(blind.id or 0) - 1, blind.id, odd.id)
    )

    assert own == {"acknowledge", "silence", "resolve", "accept"}
    assert stopped == {"acknowledge", "silence"}
    assert strange == {"acknowledge", "silence", "resolve"}


def test_who_may_only_read_sees_no_buttons_and_is_refused(
    client: TestClient, database: Database, shifted: Life
) -> None:
    post(client, f"{path(database)}/silence", {"for": "1 h"})
    (one,) = silences_of(database, shifted.now)
    signed_in(client, database, Scope.READ)
    before = changes(database)

    pages = [client.get(path(database)).text, client.get("/alarms").text]
    answers = [
        post(client, f"{path(database)}/{action}", {"for": "1 h"})
        for action in ("acknowledge", "silence", "resolve", "accept")
    ]
    answers.append(post(client, f"/silences/{one.id}/end"))

    assert [forms(text) for text in pages] == [set(), set()]
    assert [answer.status_code for answer in answers] == [403] * 5
    assert all("<h1>" in answer.text for answer in answers)
    assert changes(database) == before
    assert len(silences_of(database, shifted.now)) == 1


# Nobody writes into our pages.


def test_names_notes_and_reasons_are_shown_as_they_are(
    client: TestClient, database: Database, shifted: Life
) -> None:
    signed_in(client, database, Scope.ADMIN, name=EVIL)
    post(client, f"{path(database)}/acknowledge", {"note": EVIL})
    post(client, f"{path(database)}/silence", {"for": "1 h", "reason": EVIL})
    another(database, shifted, reason=EVIL)

    pages = [client.get(one).text for one in (path(database), "/alarms", f"/alarms?model={EVIL}")]

    assert all(EVIL not in text for text in pages)
    assert all("&lt;script&gt;" in text for text in pages)


@pytest.mark.parametrize("path", ["/?q=%00", "/alarms?model=%00", "/alarms?state=odd"])
def test_a_search_for_what_cannot_be_is_refused(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 422


def test_a_link_cannot_put_words_into_our_mouth(client: TestClient) -> None:
    assert 'class="told"' not in client.get("/alarms?done=You+were+hacked").text
    assert "hacked" not in client.get("/alarms?done=You+were+hacked").text
