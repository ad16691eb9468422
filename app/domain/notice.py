"""Notices: what is told of an alarm, in the words and shapes that receivers expect.

A notice is kept as the JSON of the `standard` shape; every other shape is made from that when it
is sent. Nothing here knows of HTTP beyond a body and its content type.
"""

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from app.domain import moved
from app.domain.moved import Moved
from app.domain.times import rfc_3339
from app.domain.words import named

Notice = Mapping[str, Any]


class Event(StrEnum):
    PENDING = "alarm.pending"
    FIRING = "alarm.firing"
    ACKNOWLEDGED = "alarm.acknowledged"
    RESOLVED = "alarm.resolved"
    REVISED = "alarm.revised"
    TEST = "test"


class Shape(StrEnum):
    STANDARD = "standard"
    CLOUDEVENTS = "cloudevents"
    SLACK = "slack"
    PAGERDUTY = "pagerduty"
    TEAMS = "teams"
    ALERTMANAGER = "alertmanager"


@dataclass(frozen=True, slots=True)
class Shaped:
    body: bytes
    content_type: str


# Standard Webhooks 1.0 asks for bodies below 20 kB.
MOST_BYTES = 20_000
LABELS_OF_A_LARGE_NOTICE = 20
# Slack refuses texts of more than 3000 characters, and five stand for each `&` in them.
LONGEST_TEXT = 500
JSON = "application/json"
SECRET_PREFIX = "whsec_"

# Of notices whose alarm does not say itself after how many `renotify_seconds` it is told again.
RENOTIFY = timedelta(hours=4)
# Nobody is reminded of an alarm that somebody looks after.
ACKNOWLEDGED_FOR = timedelta(days=30)
# Alertmanager takes an alert as resolved only if it ended by its own clock, which may be behind.
CLOCK_SKEW = timedelta(minutes=1)
# A test should be seen, then be gone by itself.
TEST_FOR = timedelta(minutes=5)


def default_events(shape: Shape) -> tuple[Event, ...]:
    """What a webhook is told of that did not choose.

    Alertmanager forgets an alert that it does not hear of, and sounds the all-clear: it must know
    of an acknowledgement, after which there are no reminders.
    """
    usual = (Event.FIRING, Event.RESOLVED, Event.REVISED)
    return (*usual, Event.ACKNOWLEDGED) if shape is Shape.ALERTMANAGER else usual


def shaped(
    shape: Shape,
    notice: Notice,
    *,
    message_id: str,
    now: datetime,
    routing_key: str | None = None,
) -> Shaped:
    """The notice as the receiver wants it."""
    match shape:
        case Shape.STANDARD:
            return Shaped(_standard(notice), JSON)
        case Shape.CLOUDEVENTS:
            return Shaped(_cloudevent(notice, message_id), "application/cloudevents+json")
        case Shape.SLACK:
            return Shaped(_json(_slack(notice)), JSON)
        case Shape.PAGERDUTY:
            return Shaped(_json(_pagerduty(notice, routing_key)), JSON)
        case Shape.TEAMS:
            return Shaped(_json(_teams(notice)), JSON)
        case Shape.ALERTMANAGER:
            return Shaped(_json([_alert(notice, now)]), JSON)


def summary(notice: Notice) -> str:
    """The notice in one line of plain words.

    >>> summary({"type": "alarm.firing", "timestamp": "2026-11-17T14:20:00Z", "data": {
    ...     "alarm": {"model": "fraud", "kind": "shift", "verdict": "label_shift",
    ...               "state": "firing", "since": "2026-11-17T14:05:00Z", "onset": None},
    ...     "estimate": {"labels": [{"label": "legit", "p": 0.99, "q": 0.96},
    ...                             {"label": "fraud", "p": 0.01, "q": 0.048}]}}})
    "fraud: label shift since 14:05 UTC. 'fraud' is about 4.8 % (was 1.0 %)."
    """
    alarm = _alarm(notice)
    if alarm is None:
        return _cut(f"Shiftwatch: {notice['data']['reason']}", LONGEST_TEXT)
    since = _clock(alarm.get("onset") or alarm["since"], notice["timestamp"])
    told = _told(Event(notice["type"]), f"{_worry(alarm)} since {since}", alarm)
    return _cut(" ".join([f"{alarm['model']}: {told}", *_movement(notice)]), LONGEST_TEXT)


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Of one attempt to tell, at `timestamp` in unix seconds, by Standard Webhooks 1.0."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = b".".join([message_id.encode(), str(timestamp).encode(), body])
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


# Standard and CloudEvents: everything we know.


def _standard(notice: Notice) -> bytes:
    """As much as there is room for."""
    body = _ordered(notice)
    for smaller in (_with_fewer_labels, _without_evidence, _bare):
        if len(body) < MOST_BYTES:
            break
        body = _ordered(smaller(notice))
    return body


def _ordered(notice: Notice) -> bytes:
    # The database does not keep the order of names; people read the type first.
    return _json({name: notice[name] for name in ("type", "timestamp", "data")})


def _with_fewer_labels(notice: Notice) -> Notice:
    """Only those labels that moved most, in the order they were in."""
    estimate = notice["data"].get("estimate")
    if not estimate:
        return _changed(notice)
    shares = sorted(_shares(estimate), key=lambda one: moved.change(one.p, one.q), reverse=True)
    names = {one.label for one in shares[:LABELS_OF_A_LARGE_NOTICE]}
    kept = [one for one in estimate["labels"] if one["label"] in names]
    return _changed(notice, estimate={**estimate, "labels": kept})


def _without_evidence(notice: Notice) -> Notice:
    alarm = _alarm(notice)
    fewer = _with_fewer_labels(notice)
    return fewer if alarm is None else _changed(fewer, alarm={**alarm, "evidence": {}})


def _bare(notice: Notice) -> Notice:
    """What is left when even the names of the labels are too long."""
    return _changed(_without_evidence(notice), estimate=None, reason=_reason(notice))


def _changed(notice: Notice, **data: Any) -> Notice:
    return {**notice, "data": {**notice["data"], **data, "truncated": True}}


def _cloudevent(notice: Notice, message_id: str) -> bytes:
    """CloudEvents 1.0 in structured mode, with the same id as the message around it."""
    plain = json.loads(_standard(notice))
    alarm = _alarm(notice)
    place = {"source": "/webhooks"}
    if alarm is not None:
        place = {
            "source": f"/models/{alarm['model']}/versions/{alarm['version']}",
            "subject": f"alarms/{alarm['id']}",
        }
    return _json(
        {
            "specversion": "1.0",
            "id": message_id,
            **place,
            "type": f"io.shiftwatch.{plain['type']}.v1",
            "time": plain["timestamp"],
            "datacontenttype": JSON,
            "data": plain["data"],
        }
    )


# Slack, PagerDuty and Teams: what a person wants to know at once.


def _slack(notice: Notice) -> dict[str, Any]:
    said = _slack_escaped(summary(notice))
    lines = [_slack_escaped(_reason(notice))]
    if page := _page(notice):
        lines.append(f"<{_slack_escaped(page)}|Open in Shiftwatch>")
    return {
        "text": said,
        "blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": f"{_sign(notice)} *{said}*"}},
            *(_slack_context(line) for line in lines if line),
        ],
    }


def _slack_context(text: str) -> dict[str, Any]:
    return {"type": "context", "elements": [{"type": "mrkdwn", "text": text}]}


def _slack_escaped(text: str) -> str:
    """Slack reads `<!channel>` and `<http://...>` as orders; a label's name may contain both."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _pagerduty(notice: Notice, routing_key: str | None) -> dict[str, Any]:
    """Events API v2, which knows our severities and one more.

    The dedup key is the alarm's, so that its end ends the incident.
    """
    alarm = _alarm(notice)
    name = "shiftwatch-test" if alarm is None else f"shiftwatch-alarm-{alarm['id']}"
    event = {
        "routing_key": routing_key,
        "event_action": _pagerduty_action(notice),
        "dedup_key": name,
        "client": "Shiftwatch",
        "payload": {
            "summary": summary(notice),
            "source": "shiftwatch" if alarm is None else alarm["model"],
            "severity": "info" if alarm is None else alarm["severity"],
            "timestamp": notice["timestamp"],
            "component": "shiftwatch",
            "class": "test" if alarm is None else alarm["kind"],
            "custom_details": {"reason": _reason(notice), **_details(alarm)},
        },
    }
    page = _page(notice)
    if page is None:
        return event
    link = {"href": page, "text": "Open in Shiftwatch"}
    return {**event, "client_url": page, "links": [link]}


def _pagerduty_action(notice: Notice) -> str:
    if _over(notice):
        return "resolve"
    return "acknowledge" if notice["type"] == Event.ACKNOWLEDGED else "trigger"


def _teams(notice: Notice) -> dict[str, Any]:
    """A message with an Adaptive Card, as Power Automate's Workflows take it."""
    alarm = _alarm(notice)
    facts = [{"title": name, "value": value} for name, value in _details(alarm).items()]
    page = _page(notice)
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            _teams_text(summary(notice), weight="Bolder"),
            _teams_text(_reason(notice)),
            *([{"type": "FactSet", "facts": facts}] if facts else []),
        ],
        "actions": [{"type": "Action.OpenUrl", "title": "Open in Shiftwatch", "url": page}]
        if page
        else [],
    }
    content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [content]}


def _teams_text(text: str, weight: str = "Default") -> dict[str, Any]:
    # A TextBlock reads Markdown, a TextRun does not: the name of a label could hold a link.
    run = {"type": "TextRun", "text": text, "weight": weight}
    return {"type": "RichTextBlock", "inlines": [run]}


# Alertmanager: an alert that is kept alive until it is over.


def _alert(notice: Notice, now: datetime) -> dict[str, Any]:
    """One alert of Alertmanager's API v2.

    Its labels are its identity. They hold only what never changes about an alarm: with the
    severity among them, one that gets worse would be a second alert, and the first would stay.
    """
    alarm = _alarm(notice)
    annotations = {
        "summary": summary(notice),
        "description": _reason(notice),
        **_details(alarm),
    }
    alert: dict[str, Any] = {
        "labels": _alert_labels(alarm),
        "annotations": {name: value for name, value in annotations.items() if value},
        "startsAt": notice["timestamp"] if alarm is None else alarm["since"],
        "endsAt": rfc_3339(_alert_end(notice, now)),
    }
    page = _page(notice)
    return alert if page is None else {**alert, "generatorURL": page}


def _alert_labels(alarm: Mapping[str, Any] | None) -> dict[str, str]:
    if alarm is None:
        return {"alertname": "ShiftwatchTest", "service": "shiftwatch"}
    return {
        "alertname": _ALERT_NAMES[alarm["kind"]],
        "model": alarm["model"],
        "version": alarm["version"],
        "service": "shiftwatch",
    }


_ALERT_NAMES = {
    "shift": "LabelShiftDetected",
    "assumption": "LabelShiftAssumptionViolated",
    "no_data": "LabelShiftNoData",
    "ingest_stopped": "LabelShiftIngestStopped",
}


def _alert_end(notice: Notice, now: datetime) -> datetime:
    """When Alertmanager may forget the alert if it hears no more of it."""
    alarm = _alarm(notice)
    if alarm is None:
        return now + TEST_FOR
    if _over(notice):
        return max(now - CLOCK_SKEW, _moment(alarm["since"]))
    if alarm["state"] == "acknowledged":
        return now + ACKNOWLEDGED_FOR
    seconds = alarm.get("renotify_seconds")
    return now + 2 * (RENOTIFY if seconds is None else timedelta(seconds=seconds))


# What a notice says, in words.


def _told(event: Event, worry: str, alarm: Mapping[str, Any]) -> str:
    match event:
        case Event.PENDING:
            return f"perhaps {worry}; not an alarm yet."
        case Event.ACKNOWLEDGED:
            return f"{worry}, acknowledged by {alarm.get('acknowledged_by') or 'somebody'}."
        case Event.RESOLVED:
            return f"{worry} is over."
        case Event.REVISED:
            return f"{worry}, revised."
        case Event.FIRING | Event.TEST:
            return f"{worry}."


def _alarm(notice: Notice) -> Mapping[str, Any] | None:
    """A test is about no alarm."""
    found: Mapping[str, Any] | None = notice["data"].get("alarm")
    return found


def _over(notice: Notice) -> bool:
    # A revision of an alarm that is over must not open it again.
    alarm = _alarm(notice)
    return alarm is not None and alarm["state"] == "resolved"


def _reason(notice: Notice) -> str:
    return _cut(notice["data"].get("reason") or "", LONGEST_TEXT)


def _page(notice: Notice) -> str | None:
    found: str | None = notice["data"].get("links", {}).get("page")
    return found


def _details(alarm: Mapping[str, Any] | None) -> dict[str, str]:
    if alarm is None:
        return {}
    names = ("model", "version", "severity", "state", "verdict", "since", "onset")
    return {name: alarm[name] for name in names if alarm.get(name)}


def _sign(notice: Notice) -> str:
    alarm = _alarm(notice)
    if alarm is None:
        return ":wave:"
    if _over(notice):
        return ":white_check_mark:"
    return ":red_circle:" if alarm["severity"] == "critical" else ":warning:"


_SHIFTS = {
    "label_shift": "label shift",
    "not_label_shift": "a shift that is not label shift",
}
_WORRIES = {
    "assumption": "a change that label shift cannot explain",
    "no_data": "no predictions",
    "ingest_stopped": "no new predictions",
}


def _worry(alarm: Mapping[str, Any]) -> str:
    shift = _SHIFTS.get(alarm.get("verdict") or "", "a shift of unknown kind")
    return _WORRIES.get(alarm["kind"], shift)


def _movement(notice: Notice) -> Sequence[str]:
    """Which label moved most. Only under label shift are the estimates worth telling."""
    estimate = notice["data"].get("estimate")
    alarm = _alarm(notice)
    if not estimate or not alarm or _over(notice) or not _estimable(alarm):
        return ()
    doubtful = (*estimate.get("not_identified", ()), *estimate.get("weakly_identified", ()))
    most = moved.most(_shares(estimate), _groups(estimate), doubtful)
    if most is None:
        return ()
    return (f"'{most.label}' is about {_percent(most.q)} (was {_percent(most.p)}).",)


def _estimable(alarm: Mapping[str, Any]) -> bool:
    return (alarm["kind"], alarm.get("verdict")) == ("shift", "label_shift")


def _shares(estimate: Mapping[str, Any]) -> Iterator[Moved]:
    for one in estimate["labels"]:
        if one["p"] is not None and one["q"] is not None:
            ends = (one.get("q_lower"), one.get("q_upper"))
            yield Moved(one["label"], one["p"], one["q"], *ends)


def _groups(estimate: Mapping[str, Any]) -> Iterator[Moved]:
    p = {one["label"]: one["p"] or 0.0 for one in estimate["labels"]}
    for group in estimate.get("groups", ()):
        was = sum(p[label] for label in group["labels"])
        name = named(group["labels"], "or")
        yield Moved(name, was, group["q"], group["q_lower"], group["q_upper"])


def _percent(share: float) -> str:
    """
    >>> [_percent(share) for share in (0.0, 0.000001, 0.0012, 0.0478, 0.5, 1.0)]
    ['0 %', 'under 0.01 %', '0.12 %', '4.8 %', '50.0 %', '100.0 %']
    """
    percent = 100 * share
    if 0 < percent < 0.01:
        return "under 0.01 %"
    return f"{percent:.1f} %" if percent >= 1 else f"{percent:.2g} %"


def _clock(moment: str, told: str) -> str:
    """The time of day; with the date, unless it is that of the notice."""
    at = _moment(moment)
    form = "%H:%M UTC" if at.date() == _moment(told).date() else "%Y-%m-%d %H:%M UTC"
    return at.strftime(form)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _cut(text: str, length: int) -> str:
    """
    >>> _cut("a long story", 7)
    'a long…'
    """
    return text if len(text) <= length else text[: length - 1] + "…"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
