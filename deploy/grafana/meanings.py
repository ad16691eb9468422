"""What verdicts, severities and states are called and coloured, on every dashboard alike.

A panel shows numbers, so each word has one. They are for the eyes only: no rule goes by them.
"""

from deploy.grafana.blocks import CRITICAL, INFO, NOTHING, OK, WARNING, coded, words

VERDICTS = {
    "no_data": 1,
    "insufficient_data": 2,
    "no_shift": 3,
    "undetermined": 4,
    "label_shift": 5,
    "not_label_shift": 6,
}
VERDICT_WORDS = words(
    {
        1: ("no data", NOTHING),
        2: ("too few predictions", NOTHING),
        3: ("no shift", OK),
        4: ("shift, kind unknown", WARNING),
        5: ("label shift", WARNING),
        6: ("not label shift", CRITICAL),
    }
)

SEVERITIES = {"info": 1, "warning": 2, "critical": 3}
SEVERITY_WORDS = words(
    {0: ("none", OK), 1: ("info", INFO), 2: ("warning", WARNING), 3: ("critical", CRITICAL)}
)

STATES = {"ok": 0, "pending": 1, "acknowledged": 2, "firing": 3}
STATE_WORDS = words(
    {0: ("ok", OK), 1: ("pending", "yellow"), 2: ("acknowledged", INFO), 3: ("firing", CRITICAL)}
)


def verdict(matchers: str) -> str:
    return coded(f"shiftwatch_verdict{{{matchers}}}", "verdict", VERDICTS)


def severity(matchers: str) -> str:
    """Of each kind of alarm; 0 if there is none."""
    return coded(f"shiftwatch_alarm_active{{{matchers}}}", "severity", SEVERITIES)


def state(matchers: str) -> str:
    """Of each kind of alarm."""
    return coded(f"shiftwatch_alarm_state{{{matchers}}}", "state", STATES)
