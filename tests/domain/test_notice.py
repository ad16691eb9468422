"""Notices: the same facts for every receiver, each in its own shape."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from app.domain import notice
from app.domain.notice import Event, Shape, default_events, shaped, summary

NOW = datetime(2026, 11, 17, 14, 20, 30, tzinfo=UTC)
PAGE = "https://watch.example/models/fraud"


def alarm(**changes: Any) -> dict[str, Any]:
    return {
        "id": 7,
        "model": "fraud",
        "version": "2026-11-01",
        "kind": "shift",
        "state": "firing",
        "severity": "warning",
        "verdict": "label_shift",
        "since": "2026-11-17T14:05:00Z",
        "onset": None,
        "acknowledged_by": None,
        "confirmed": False,
        "evidence": {"p_value": 1e-9},
        **changes,
    }


def label(name: str, p: float | None, q: float | None) -> dict[str, Any]:
    return {"label": name, "p": p, "q": q, "q_lower": None, "q_upper": None}


LABELS = [label("legit", 0.98, 0.95), label("fraud", 0.012, 0.048), label("abuse", 0.008, 0.002)]


def told(event: Event = Event.FIRING, labels: Any = LABELS, **changes: Any) -> dict[str, Any]:
    """A notice of an alarm."""
    return {
        "type": event.value,
        "timestamp": "2026-11-17T14:20:00Z",
        "data": {
            "alarm": alarm(**changes),
            "estimate": None if labels is None else {"n": 2400, "labels": labels},
            "reason": "the mix of predictions changed",
            "links": {"page": PAGE, "api": "https://watch.example/v1/alarms/7"},
        },
    }


TRIAL = {
    "type": "test",
    "timestamp": "2026-11-17T14:20:00Z",
    "data": {"reason": "this is a test", "links": {"page": PAGE}},
}


def body(shape: Shape, given: Any, now: datetime = NOW) -> Any:
    made = shaped(shape, given, message_id="msg_1", now=now, routing_key="r0ut1ng")
    return json.loads(made.body)


# In words.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (told(), "fraud: label shift since 14:05 UTC. 'fraud' is about 4.8 % (was 1.2 %)."),
        (told(labels=None), "fraud: label shift since 14:05 UTC."),
        (told(labels=[label("a", None, None)]), "fraud: label shift since 14:05 UTC."),
        (told(labels=[label("a", 0.5, 0.5)]), "fraud: label shift since 14:05 UTC."),
        (
            told(verdict="not_label_shift"),
            "fraud: a shift that is not label shift since 14:05 UTC.",
        ),
        (told(verdict="undetermined"), "fraud: a shift of unknown kind since 14:05 UTC."),
        (told(verdict=None), "fraud: a shift of unknown kind since 14:05 UTC."),
        (
            told(kind="assumption", verdict="not_label_shift"),
            "fraud: a change that label shift cannot explain since 14:05 UTC.",
        ),
        (told(kind="no_data", verdict=None), "fraud: no predictions since 14:05 UTC."),
        (told(kind="ingest_stopped"), "fraud: no new predictions since 14:05 UTC."),
        (
            told(Event.PENDING, labels=None, state="pending"),
            "fraud: perhaps label shift since 14:05 UTC; not an alarm yet.",
        ),
        (
            told(Event.ACKNOWLEDGED, labels=None, state="acknowledged", acknowledged_by="Ada"),
            "fraud: label shift since 14:05 UTC, acknowledged by Ada.",
        ),
        (
            told(Event.ACKNOWLEDGED, labels=None, state="acknowledged"),
            "fraud: label shift since 14:05 UTC, acknowledged by somebody.",
        ),
        (told(Event.RESOLVED, state="resolved"), "fraud: label shift since 14:05 UTC is over."),
        (told(Event.REVISED, labels=None), "fraud: label shift since 14:05 UTC, revised."),
        (TRIAL, "Shiftwatch: this is a test"),
    ],
)
def test_a_notice_is_said_in_one_line(given: Any, said: str) -> None:
    assert summary(given) == said


def test_a_notice_speaks_of_the_label_that_the_page_speaks_of() -> None:
    said = summary(
        told(labels=[label("a", 0.6, 0.5), label("b", 0.3, 0.31), label("c", 0.1, 0.19)])
    )

    assert said == "fraud: label shift since 14:05 UTC. 'c' is about 19.0 % (was 10.0 %)."


def test_of_labels_that_look_alike_a_notice_gives_the_sum() -> None:
    given = told(labels=[label("cat", 0.8, 0.6), label("dog", 0.1, 0.1), label("wolf", 0.1, 0.3)])
    group = {"labels": ["dog", "wolf"], "q": 0.4, "q_lower": 0.35, "q_upper": 0.45}
    given["data"]["estimate"] |= {"not_identified": ["dog", "wolf"], "groups": [group]}

    said = summary(given)

    assert said == "fraud: label shift since 14:05 UTC. 'dog or wolf' is about 40.0 % (was 20.0 %)."


def test_a_share_that_the_reference_cannot_tell_is_not_told() -> None:
    given = told(labels=[label("dog", 0.5, 0.4), label("wolf", 0.5, 0.6)])
    given["data"]["estimate"] |= {"not_identified": ["dog", "wolf"], "groups": []}

    assert summary(given) == "fraud: label shift since 14:05 UTC."


def test_what_began_another_day_is_said_with_its_date() -> None:
    said = summary(told(labels=None, since="2026-11-16T23:59:00Z"))

    assert said == "fraud: label shift since 2026-11-16 23:59 UTC."


def test_the_onset_is_said_where_it_is_known() -> None:
    said = summary(told(labels=None, onset="2026-11-17T13:00:00+00:00"))

    assert said == "fraud: label shift since 13:00 UTC."


@given(st.text(max_size=3000))
@settings(deadline=None)
def test_a_summary_is_never_too_long_for_a_chat(name: str) -> None:
    said = summary(told(labels=[label(name, 0.0, 1.0)], acknowledged_by=name))

    assert len(said) <= 500


# Standard Webhooks.


def test_the_standard_body_is_the_notice_itself_without_a_blank() -> None:
    made = shaped(Shape.STANDARD, told(), message_id="msg_1", now=NOW)

    assert json.loads(made.body) == told()
    assert made.content_type == "application/json"
    assert made.body == json.dumps(told(), separators=(",", ":")).encode()


def test_the_type_comes_first_in_whatever_order_the_database_has_it() -> None:
    backwards = dict(reversed(told().items()))

    made = shaped(Shape.STANDARD, backwards, message_id="msg_1", now=NOW)

    assert made.body.startswith(b'{"type":"alarm.firing","timestamp":')


def many(n: int, length: int = 10) -> list[dict[str, Any]]:
    """Labels of which the later moved more, in an order that is not theirs."""
    found = [label(f"{i:0{length}d}", 0.001, 0.001 + i / 10_000) for i in range(n)]
    return found[n // 2 :] + found[: n // 2]


def test_of_very_many_labels_those_are_told_that_moved_most_in_their_order() -> None:
    large = told(labels=many(1000))

    data = body(Shape.STANDARD, large)["data"]

    kept = [one["label"] for one in data["estimate"]["labels"]]
    assert kept == [f"{i:010d}" for i in range(980, 1000)]
    assert kept == [one["label"] for one in many(1000) if one["label"] in kept]
    assert data["truncated"] is True
    assert data["alarm"] == large["data"]["alarm"]


def test_evidence_goes_next() -> None:
    large = told(evidence={"curve": [0.123456789] * 5000})

    data = body(Shape.STANDARD, large)["data"]

    assert data["alarm"] == alarm(evidence={})
    assert data["estimate"] == large["data"]["estimate"]
    assert data["truncated"] is True


def test_a_small_notice_is_not_called_truncated() -> None:
    assert "truncated" not in body(Shape.STANDARD, told())["data"]


@given(
    n=st.integers(0, 1000),
    length=st.integers(10, 200),
    evidence=st.integers(0, 5000),
    reason=st.integers(0, 50_000),
    labels=st.booleans(),
    about=st.booleans(),
)
@settings(deadline=None, max_examples=50)
def test_no_body_is_larger_than_receivers_take(
    n: int, length: int, evidence: int, reason: int, labels: bool, about: bool
) -> None:
    given = told(labels=many(n, length) if labels else None, evidence={"x": [0.5] * evidence})
    given["data"]["reason"] = "€" * reason
    if not about:
        del given["data"]["alarm"]
        given["type"] = "test"

    for shape in (Shape.STANDARD, Shape.CLOUDEVENTS):
        made = shaped(shape, given, message_id="msg_1", now=NOW)

        assert len(made.body) < 20_500


def test_nothing_but_numbers_is_sent() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        shaped(Shape.STANDARD, told(evidence={"x": float("nan")}), message_id="msg_1", now=NOW)


# The vector of CONVENTIONS, made with the package of Standard Webhooks.
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
CREATED = (
    b'{"type":"contact.created","timestamp":"2022-11-03T20:26:10.344522Z",'
    b'"data":{"id":"1f81eb52-5198-4599-803e-771906343485"}}'
)


def test_the_signature_is_that_of_standard_webhooks() -> None:
    found = notice.signature(SECRET, "msg_2KWPBgLlAfxdpx2AI54pPJ85f4W", 1674087231, CREATED)

    assert found == "v1,bAo/ZbQILxvdozo/ynbX/OmAvBCBNauT8tvtBLFrDCI="


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 2**31))
def test_every_signature_is_that_of_the_package(text: str, timestamp: int) -> None:
    secret = notice.new_secret()
    at = datetime.fromtimestamp(timestamp, UTC)

    found = notice.signature(secret, "msg_1", timestamp, text.encode())

    assert found == Webhook(secret).sign("msg_1", at, text)


def test_a_secret_is_random_and_long_enough() -> None:
    made = {notice.new_secret() for _ in range(20)}

    assert len(made) == 20
    assert all(re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=", one) for one in made)


# CloudEvents.


def test_a_cloudevent_has_the_attributes_it_must_have() -> None:
    made = shaped(Shape.CLOUDEVENTS, told(), message_id="msg_1", now=NOW)

    assert made.content_type == "application/cloudevents+json"
    assert json.loads(made.body) == {
        "specversion": "1.0",
        "id": "msg_1",
        "source": "/models/fraud/versions/2026-11-01",
        "subject": "alarms/7",
        "type": "io.shiftwatch.alarm.firing.v1",
        "time": "2026-11-17T14:20:00Z",
        "datacontenttype": "application/json",
        "data": told()["data"],
    }


def test_a_test_is_a_cloudevent_about_nothing() -> None:
    found = body(Shape.CLOUDEVENTS, TRIAL)

    assert (found["source"], found["type"]) == ("/webhooks", "io.shiftwatch.test.v1")
    assert "subject" not in found


# Slack.


def test_slack_gets_a_text_and_blocks() -> None:
    found = body(Shape.SLACK, told())

    assert found["text"] == summary(told())
    first, reason, link = found["blocks"]
    assert first["text"] == {"type": "mrkdwn", "text": f":warning: *{summary(told())}*"}
    assert reason["elements"][0]["text"] == "the mix of predictions changed"
    assert link["elements"][0]["text"] == f"<{PAGE}|Open in Shiftwatch>"


def test_slack_needs_no_link_and_no_reason() -> None:
    given = told()
    given["data"] |= {"reason": "", "links": {}}

    assert len(body(Shape.SLACK, given)["blocks"]) == 1


@pytest.mark.parametrize(
    ("given", "sign"),
    [
        (told(severity="critical"), ":red_circle:"),
        (told(severity="info"), ":warning:"),
        (told(Event.RESOLVED, state="resolved", severity="critical"), ":white_check_mark:"),
        (TRIAL, ":wave:"),
    ],
)
def test_slack_shows_at_a_glance_how_bad_it_is(given: Any, sign: str) -> None:
    assert body(Shape.SLACK, given)["blocks"][0]["text"]["text"].startswith(f"{sign} ")


def test_a_label_cannot_call_the_whole_channel() -> None:
    given = told(labels=[label("<!channel> & <http://evil|x>", 0.1, 0.9)])
    given["data"]["reason"] = "<!here>"

    sent = json.dumps(body(Shape.SLACK, given))

    assert "&lt;!channel&gt; &amp; &lt;http://evil|x&gt;" in sent
    assert "<!" not in sent
    assert "<http://evil" not in sent


@given(st.text("&<>x", min_size=400, max_size=3000))
@settings(deadline=None, max_examples=20)
def test_no_text_is_longer_than_slack_takes(text: str) -> None:
    given = told(labels=[label(text, 0.1, 0.9)])
    given["data"]["reason"] = text

    first, reason, _ = body(Shape.SLACK, given)["blocks"]

    assert len(first["text"]["text"]) <= 3000
    assert len(reason["elements"][0]["text"]) <= 3000


# PagerDuty.


def test_pagerduty_gets_an_event_of_its_version_2() -> None:
    assert body(Shape.PAGERDUTY, told()) == {
        "routing_key": "r0ut1ng",
        "event_action": "trigger",
        "dedup_key": "shiftwatch-alarm-7",
        "client": "Shiftwatch",
        "client_url": PAGE,
        "links": [{"href": PAGE, "text": "Open in Shiftwatch"}],
        "payload": {
            "summary": summary(told()),
            "source": "fraud",
            "severity": "warning",
            "timestamp": "2026-11-17T14:20:00Z",
            "component": "shiftwatch",
            "class": "shift",
            "custom_details": {
                "reason": "the mix of predictions changed",
                "model": "fraud",
                "version": "2026-11-01",
                "severity": "warning",
                "state": "firing",
                "verdict": "label_shift",
                "since": "2026-11-17T14:05:00Z",
            },
        },
    }


@pytest.mark.parametrize(
    ("given", "action"),
    [
        (told(Event.PENDING, state="pending"), "trigger"),
        (told(Event.FIRING), "trigger"),
        (told(Event.ACKNOWLEDGED, state="acknowledged"), "acknowledge"),
        (told(Event.REVISED), "trigger"),
        (told(Event.RESOLVED, state="resolved"), "resolve"),
        (told(Event.REVISED, state="resolved"), "resolve"),
        (TRIAL, "trigger"),
    ],
)
def test_pagerduty_is_told_what_to_do(given: Any, action: str) -> None:
    assert body(Shape.PAGERDUTY, given)["event_action"] == action


def test_an_incident_is_ended_by_the_alarm_that_opened_it() -> None:
    begun = body(Shape.PAGERDUTY, told())
    ended = body(Shape.PAGERDUTY, told(Event.RESOLVED, state="resolved", severity="info"))

    assert begun["dedup_key"] == ended["dedup_key"]
    assert body(Shape.PAGERDUTY, told(id=8))["dedup_key"] != begun["dedup_key"]


@pytest.mark.parametrize("severity", ["info", "warning", "critical"])
def test_every_severity_is_one_of_pagerdutys(severity: str) -> None:
    found = body(Shape.PAGERDUTY, told(severity=severity))["payload"]["severity"]

    assert found == severity
    assert found in {"critical", "error", "warning", "info"}


def test_a_test_reaches_pagerduty_without_a_link_too() -> None:
    found = body(Shape.PAGERDUTY, {**TRIAL, "data": {"reason": "this is a test"}})

    assert "links" not in found
    assert found["payload"]["severity"] == "info"
    assert found["payload"]["source"] == "shiftwatch"


# Teams.


def test_teams_gets_an_adaptive_card() -> None:
    found = body(Shape.TEAMS, told())

    (attached,) = found["attachments"]
    card = attached["content"]
    assert (found["type"], attached["contentType"]) == (
        "message",
        "application/vnd.microsoft.card.adaptive",
    )
    assert (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
    assert card["body"][0]["inlines"][0]["text"] == summary(told())
    assert {"title": "model", "value": "fraud"} in card["body"][2]["facts"]
    assert card["actions"][0]["url"] == PAGE


def test_teams_gets_a_test_without_facts_and_link() -> None:
    found = body(Shape.TEAMS, {**TRIAL, "data": {"reason": "this is a test"}})

    card = found["attachments"][0]["content"]
    assert (len(card["body"]), card["actions"]) == (2, [])


def test_no_label_is_read_as_markdown_by_teams() -> None:
    given = told(labels=[label("[click](http://evil)", 0.1, 0.9)])

    card = body(Shape.TEAMS, given)["attachments"][0]["content"]

    texts = [part for part in card["body"] if "evil" in json.dumps(part)]
    assert [part["type"] for part in texts] == ["RichTextBlock"]


# Alertmanager.


def alert(given: Any, now: datetime = NOW) -> Any:
    (found,) = body(Shape.ALERTMANAGER, given, now)
    return found


def test_alertmanager_gets_an_alert() -> None:
    assert alert(told(onset="2026-11-17T14:00:00Z")) == {
        "labels": {
            "alertname": "LabelShiftDetected",
            "model": "fraud",
            "version": "2026-11-01",
            "service": "shiftwatch",
        },
        "annotations": {
            "summary": "fraud: label shift since 14:00 UTC. 'fraud' is about 4.8 % (was 1.2 %).",
            "description": "the mix of predictions changed",
            "model": "fraud",
            "version": "2026-11-01",
            "severity": "warning",
            "state": "firing",
            "verdict": "label_shift",
            "since": "2026-11-17T14:05:00Z",
            "onset": "2026-11-17T14:00:00Z",
        },
        "startsAt": "2026-11-17T14:05:00Z",
        "endsAt": "2026-11-17T22:20:30Z",
        "generatorURL": PAGE,
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("shift", "LabelShiftDetected"),
        ("assumption", "LabelShiftAssumptionViolated"),
        ("no_data", "LabelShiftNoData"),
        ("ingest_stopped", "LabelShiftIngestStopped"),
    ],
)
def test_each_kind_of_alarm_has_its_alert(kind: str, name: str) -> None:
    assert alert(told(kind=kind))["labels"]["alertname"] == name


def test_whatever_changes_about_an_alarm_it_stays_one_alert() -> None:
    changes = [
        told(),
        told(severity="critical"),
        told(Event.REVISED, verdict="undetermined", labels=None),
        told(Event.ACKNOWLEDGED, state="acknowledged", acknowledged_by="Ada"),
        told(Event.RESOLVED, state="resolved", onset="2026-11-17T13:00:00Z"),
    ]

    identities = {json.dumps([alert(one)["labels"], alert(one)["startsAt"]]) for one in changes}

    assert len(identities) == 1


@pytest.mark.parametrize(
    ("given", "end"),
    [
        (told(), NOW + timedelta(hours=8)),
        (told(renotify_seconds=600.0), NOW + timedelta(minutes=20)),
        (told(Event.PENDING, state="pending"), NOW + timedelta(hours=8)),
        (told(Event.ACKNOWLEDGED, state="acknowledged"), NOW + timedelta(days=30)),
        (told(Event.REVISED, state="acknowledged"), NOW + timedelta(days=30)),
        (told(Event.RESOLVED, state="resolved"), NOW - timedelta(minutes=1)),
        (told(Event.REVISED, state="resolved"), NOW - timedelta(minutes=1)),
        (
            told(Event.RESOLVED, state="resolved", since="2026-11-17T14:20:15Z"),
            NOW.replace(second=15),
        ),
        (TRIAL, NOW + timedelta(minutes=5)),
    ],
)
def test_an_alert_lasts_until_the_next_notice_or_its_end(given: Any, end: datetime) -> None:
    assert datetime.fromisoformat(alert(given)["endsAt"]) == end


def test_an_alert_of_a_late_attempt_lasts_as_long_as_any() -> None:
    found = alert(told(), NOW + timedelta(days=1))

    assert datetime.fromisoformat(found["endsAt"]) == NOW + timedelta(days=1, hours=8)


def test_a_test_is_an_alert_of_its_own() -> None:
    found = alert({**TRIAL, "data": {"reason": "this is a test"}})

    assert found["labels"] == {"alertname": "ShiftwatchTest", "service": "shiftwatch"}
    assert "generatorURL" not in found


def test_alertmanager_hears_of_acknowledgements_or_it_would_sound_the_all_clear() -> None:
    usual = {Event.FIRING, Event.RESOLVED, Event.REVISED}

    assert set(default_events(Shape.ALERTMANAGER)) == usual | {Event.ACKNOWLEDGED}
    assert all(
        set(default_events(shape)) == usual for shape in Shape if shape is not Shape.ALERTMANAGER
    )
