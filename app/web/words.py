"""Numbers, times and states as people read them."""

from datetime import UTC, datetime, timedelta

from app.domain.times import rfc_3339

UNKNOWN = "–"

# What the API's words mean to somebody who has two minutes.
PLAIN = {
    "no_data": "no data",
    "insufficient_data": "too few predictions",
    "no_shift": "no shift",
    "label_shift": "label shift",
    "not_label_shift": "not label shift",
    "undetermined": "shift, cause unknown",
    "no_reference": "no reference yet",
    "shift": "shift",
    "assumption": "behaves differently",
    "ingest_stopped": "predictions stopped",
    "chi2": "chi-square of predicted labels",
    "ks": "Kolmogorov–Smirnov",
    "mmd": "MMD of softmax rows",
    "combined": "means of softmax rows",
    "label_shift_consistent": "a changed label mix explains it",
    "label_shift_doubtful": "doubtful",
    "untestable": "cannot be checked without softmax rows",
}

# What happens to alarms and to what is told of them.
EVENTS = {
    "alarm.pending": "first sign",
    "alarm.firing": "alarm raised",
    "alarm.acknowledged": "acknowledged",
    "alarm.revised": "changed",
    "alarm.resolved": "over",
    "test": "test",
}
DELIVERIES = {"pending": "pending", "delivered": "delivered", "dead": "given up"}
SHAPES = {
    "standard": "Standard Webhooks (a program of yours)",
    "cloudevents": "CloudEvents",
    "slack": "Slack",
    "pagerduty": "PagerDuty",
    "teams": "Microsoft Teams",
    "alertmanager": "Prometheus Alertmanager",
}


def percent(share: float | None) -> str:
    """A share, with as many digits as say something.

    >>> [percent(share) for share in (0.048, 0.912, 0.00123, 0.0, 1.0, None)]
    ['4.8 %', '91.2 %', '0.12 %', '0 %', '100 %', '–']
    """
    if share is None:
        return UNKNOWN
    value = 100.0 * share
    if value in (0.0, 100.0):
        return f"{value:.0f} %"
    digits = 1 if abs(value) >= 1.0 else 2
    return f"{value:.{digits}f} %"


def hundredths(share: float | None) -> str:
    """A share without its sign, where another beside it has one.

    >>> hundredths(0.048)
    '4.8'
    """
    return percent(share).removesuffix(" %")


def points(change: float | None) -> str:
    """A difference of shares.

    >>> points(0.036), points(-0.012)
    ('+3.6 points', '−1.2 points')
    """
    if change is None:
        return UNKNOWN
    sign = "−" if change < 0 else "+"
    return f"{sign}{abs(100.0 * change):.1f} points"


def number(value: float | None) -> str:
    """
    >>> [number(value) for value in (2.8724, -0.0312, 134.4, 1e15, None)]
    ['2.87', '−0.0312', '134', '> 1,000,000', '–']
    """
    if value is None:
        return UNKNOWN
    if value > 1e6:
        # A statistic that large has nothing more to say.
        return "> 1,000,000"
    return f"{value:.3g}".replace("-", "−", 1) if value < 0 else f"{value:.3g}"


def count(value: float | None) -> str:
    """
    >>> count(1234567)
    '1,234,567'
    """
    return UNKNOWN if value is None else f"{value:,.0f}"


def p_value(value: float | None) -> str:
    """
    >>> [p_value(value) for value in (0.4321, 0.0004, 3e-29, 0.0)]
    ['0.43', '0.0004', '3e-29', '< 1e-300']
    """
    if value is None:
        return UNKNOWN
    if value == 0.0:
        return "< 1e-300"
    return f"{value:.2f}" if value >= 0.01 else f"{value:.1g}"


def moment(at: datetime | None) -> str:
    """
    >>> moment(datetime(2026, 11, 17, 14, 5, tzinfo=UTC))
    '17 Nov 14:05 UTC'
    """
    return UNKNOWN if at is None else f"{at.astimezone(UTC):%-d %b %H:%M} UTC"


def iso(at: datetime) -> str:
    return rfc_3339(at)


def ago(at: datetime | None, now: datetime) -> str:
    """
    >>> ago(datetime(2026, 11, 17, 14, 5, tzinfo=UTC), datetime(2026, 11, 17, 16, 7, tzinfo=UTC))
    '2 h ago'
    """
    if at is None:
        return "never"
    return f"{duration(now - at)} ago" if now - at >= timedelta(seconds=5) else "just now"


def duration(length: timedelta) -> str:
    """In the largest unit that it has two of.

    >>> [duration(timedelta(seconds=s)) for s in (7, 119, 3600, 7300, 200_000)]
    ['7 s', '119 s', '60 min', '2 h', '2 d']
    """
    seconds = int(length.total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def seconds(length: float) -> str:
    """A length of time that is known in seconds.

    >>> seconds(7300.0)
    '2 h'
    """
    return duration(timedelta(seconds=length))


def plain(word: str | None) -> str:
    """
    >>> plain("not_label_shift"), plain("firing")
    ('not label shift', 'firing')
    """
    return UNKNOWN if word is None else PLAIN.get(word, word.replace("_", " "))


def span(seconds: float) -> str:
    """A time, however long, in a unit that can be imagined; a million years stand for all beyond.

    >>> [span(days * 86400.0) for days in (1.0, 30.0, 800.0, 4e5, 1e12)]
    ['24 hours', '30 days', '2 years', '1,100 years', 'a million years']
    """
    for size, unit in ((_YEAR, "years"), (86400.0, "days"), (3600.0, "hours")):
        if seconds >= 2.0 * size:
            amount = seconds / size
            # Two digits are all that can be said of how seldom something is.
            return "a million years" if amount >= 1e6 else f"{float(f'{amount:.2g}'):,.0f} {unit}"
    return f"{max(seconds / 60.0, 1.0):.0f} minutes"


_YEAR = 365.25 * 86400.0
