"""Deliveries: queued for whom it concerns, taken by one, in order, and never lost."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from app.domain.notice import Event, Shape
from app.errors import Conflict, NotFound
from app.storage import deliveries, webhooks
from app.storage.db import Connection, Database
from app.storage.deliveries import Claimed, Delivered, Delivery, GaveUp, RetryAt, State
from app.storage.tables import delivery, webhook
from app.storage.webhooks import Webhook
from tests.factories import NOW

LEASE = timedelta(seconds=60)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
ALL = tuple(Event)
URL = "https://receiver.example/hook"
NOTICE = {"type": "alarm.firing", "data": {"reason": "because"}}


def hook(conn: Connection, *events: Event, url: str = URL) -> Webhook:
    return webhooks.create(conn, url, events or ALL, Shape.STANDARD, NOW)


def queue(
    conn: Connection, event: Event = Event.FIRING, alarm: int | None = 1, after: int = 0
) -> int:
    """A notice, `after` seconds later than NOW."""
    return deliveries.queue(conn, {**NOTICE, "type": event}, event, alarm, NOW + after * SECOND)


def claim(conn: Connection, at: timedelta = HOUR) -> Claimed:
    found = deliveries.claim(conn, NOW + at, LEASE)
    assert found is not None
    return found


def something_to_claim(conn: Connection, at: timedelta = HOUR) -> bool:
    return not nothing_to_claim(conn, at)


def nothing_to_claim(conn: Connection, at: timedelta = HOUR) -> bool:
    return deliveries.claim(conn, NOW + at, LEASE) is None


def settle(conn: Connection, claimed: Claimed, outcome: Any, at: timedelta = HOUR) -> bool:
    return deliveries.settle(conn, claimed, outcome, NOW + at)


def only(conn: Connection, owner: Webhook) -> Delivery:
    (found,) = deliveries.page(conn, owner.id, None, None, 10)
    return found


# Webhooks themselves.


def test_a_webhook_is_found_as_it_was_made(conn: Connection) -> None:
    made = webhooks.create(conn, URL, [Event.FIRING] * 2, Shape.PAGERDUTY, NOW, "r0ut1ng")

    found = webhooks.get(conn, made.id)

    assert found == made
    assert (found.events, found.shape, found.routing_key) == (
        frozenset({Event.FIRING}),
        Shape.PAGERDUTY,
        "r0ut1ng",
    )


def test_whoever_prints_a_webhook_learns_no_secret(conn: Connection) -> None:
    made = webhooks.create(conn, f"{URL}/t0ken", ALL, Shape.PAGERDUTY, NOW, "r0ut1ng")
    rotated = webhooks.rotate(conn, made.id, NOW)
    queue(conn)

    printed = f"{rotated} {rotated!r} {claim(conn)!r}"

    hidden = [made.secret, rotated.secret, "r0ut1ng", "t0ken"]
    assert not [secret for secret in hidden if secret in printed]


def test_after_a_rotation_both_secrets_sign_for_a_day(conn: Connection) -> None:
    old = hook(conn)

    new = webhooks.rotate(conn, old.id, NOW)

    assert new.secret != old.secret
    assert old.secrets(NOW) == (old.secret,)
    assert new.secrets(NOW + 24 * HOUR - SECOND) == (new.secret, old.secret)
    assert new.secrets(NOW + 24 * HOUR) == (new.secret,)


def test_the_secret_before_the_last_one_signs_no_more(conn: Connection) -> None:
    first = hook(conn)
    second = webhooks.rotate(conn, first.id, NOW)

    third = webhooks.rotate(conn, first.id, NOW + SECOND)

    assert third.secrets(NOW + SECOND) == (third.secret, second.secret)


def test_a_disabled_webhook_says_since_when_and_why(conn: Connection) -> None:
    made = hook(conn)

    webhooks.disable(conn, made.id, "it is gone", NOW)
    again = webhooks.disable(conn, made.id, "another reason", NOW + HOUR)

    assert (again.disabled_at, again.disabled_because) == (NOW, "it is gone")
    assert webhooks.enable(conn, made.id) == made


def test_webhooks_come_page_by_page(conn: Connection) -> None:
    made = [hook(conn) for _ in range(3)]

    first = webhooks.page(conn, None, 2)
    rest = webhooks.page(conn, first[-1].id, 2)

    assert first + rest == made


def test_what_is_not_there_cannot_be_changed(conn: Connection) -> None:
    for attempt in (
        lambda: webhooks.get(conn, 0),
        lambda: webhooks.rotate(conn, 0, NOW),
        lambda: webhooks.disable(conn, 0, "", NOW),
        lambda: webhooks.enable(conn, 0),
        lambda: webhooks.forget(conn, 0),
        lambda: deliveries.queue_for(conn, 0, NOTICE, Event.TEST, None, NOW),
    ):
        with pytest.raises(NotFound, match="no webhook 0"):
            attempt()


def test_a_forgotten_webhook_takes_its_deliveries_along(conn: Connection) -> None:
    made = hook(conn)
    queue(conn)

    webhooks.forget(conn, made.id)

    assert conn.execute(select(func.count()).select_from(delivery)).scalar_one() == 0


# Who is told.


def test_everybody_is_told_who_wants_to_know(conn: Connection) -> None:
    wants, other = hook(conn, Event.FIRING, Event.RESOLVED), hook(conn, Event.RESOLVED)

    told = queue(conn, Event.FIRING)

    assert told == 1
    found = only(conn, wants)
    assert (found.event, found.alarm_id, found.state, found.attempts) == (
        Event.FIRING,
        1,
        State.PENDING,
        0,
    )
    assert (found.created_at, found.due_at, found.settled_at) == (NOW, NOW, None)
    assert deliveries.page(conn, other.id, None, None, 10) == []


def test_a_disabled_webhook_is_not_told(conn: Connection) -> None:
    webhooks.disable(conn, hook(conn).id, "enough", NOW)

    assert queue(conn) == 0


def test_with_no_webhook_nobody_is_told(conn: Connection) -> None:
    assert queue(conn) == 0


def test_all_copies_of_a_notice_have_one_id_and_the_next_has_another(conn: Connection) -> None:
    one, two = hook(conn), hook(conn)
    queue(conn, alarm=1)
    queue(conn, alarm=2)

    ids = [
        [found.message_id for found in deliveries.page(conn, owner.id, None, None, 10)]
        for owner in (one, two)
    ]

    assert ids[0] == ids[1]
    assert ids[0][0] != ids[0][1]
    # The id is a part of what is signed, and a dot ends it there.
    assert all(message.startswith("msg_") and "." not in message for message in ids[0])


@pytest.mark.parametrize("event", [Event.RESOLVED, Event.ACKNOWLEDGED])
def test_nobody_is_told_the_sequel_who_does_not_know_the_story(
    conn: Connection, event: Event
) -> None:
    knows = hook(conn)
    queue(conn, Event.FIRING, alarm=1)
    newcomer = hook(conn)
    queue(conn, Event.FIRING, alarm=2)

    told = queue(conn, event, alarm=1)

    assert told == 1
    assert len(deliveries.page(conn, knows.id, None, None, 10)) == 3
    assert len(deliveries.page(conn, newcomer.id, None, None, 10)) == 1


def test_one_who_heard_of_the_worry_hears_of_its_end(conn: Connection) -> None:
    hook(conn, Event.PENDING, Event.RESOLVED)
    queue(conn, Event.PENDING)

    assert queue(conn, Event.RESOLVED) == 1


def test_a_revision_is_told_to_newcomers_too(conn: Connection) -> None:
    hook(conn)

    assert queue(conn, Event.REVISED) == 1


def test_one_webhook_can_be_told_what_it_did_not_ask_for(conn: Connection) -> None:
    one, other = hook(conn, Event.FIRING), hook(conn, Event.TEST)

    made = deliveries.queue_for(conn, one.id, NOTICE, Event.TEST, None, NOW)

    assert made == only(conn, one)
    assert deliveries.page(conn, other.id, None, None, 10) == []


def test_a_disabled_webhook_cannot_be_tested(conn: Connection) -> None:
    made = webhooks.disable(conn, hook(conn).id, "enough", NOW)

    with pytest.raises(Conflict, match="disabled"):
        deliveries.queue_for(conn, made.id, NOTICE, Event.TEST, None, NOW)


# Taking one.


def test_what_is_taken_comes_with_all_that_sending_needs(conn: Connection) -> None:
    owner = hook(conn)
    queue(conn)

    found = claim(conn)

    assert (found.webhook, found.event, found.attempts) == (owner, Event.FIRING, 1)
    assert found.notice == NOTICE
    assert found.message_id == only(conn, owner).message_id


def test_nothing_is_taken_before_it_is_due(conn: Connection) -> None:
    hook(conn)
    queue(conn, after=1)

    assert nothing_to_claim(conn, timedelta(0))
    assert something_to_claim(conn, SECOND)


def test_what_is_taken_is_not_taken_again_until_its_lease_runs_out(conn: Connection) -> None:
    hook(conn)
    queue(conn)
    first = claim(conn)

    assert nothing_to_claim(conn, HOUR + LEASE - SECOND)
    again = claim(conn, HOUR + LEASE)

    assert again == replace(first, attempts=2)


def test_what_has_been_due_for_longest_comes_first(conn: Connection) -> None:
    hook(conn)
    queue(conn, alarm=1, after=20)
    queue(conn, alarm=2, after=10)

    taken = claim(conn)

    assert conn.execute(select(delivery.c.alarm_id).where(delivery.c.id == taken.id)).scalar() == 2


def test_nothing_of_a_disabled_webhook_is_taken_until_it_is_enabled(conn: Connection) -> None:
    owner = hook(conn)
    queue(conn)
    webhooks.disable(conn, owner.id, "enough", NOW)

    assert nothing_to_claim(conn)
    webhooks.enable(conn, owner.id)
    assert something_to_claim(conn)


def test_the_end_of_an_alarm_never_overtakes_its_beginning(conn: Connection) -> None:
    hook(conn)
    queue(conn, Event.FIRING)
    queue(conn, Event.RESOLVED)
    first = claim(conn)
    # The beginning has failed and waits for long; the end has been due all the time.
    settle(conn, first, RetryAt(NOW + 5 * HOUR, "HTTP 500", 500))

    assert nothing_to_claim(conn, 2 * HOUR)
    again = claim(conn, 5 * HOUR)
    settle(conn, again, Delivered(200), 5 * HOUR)
    last = claim(conn, 5 * HOUR)

    assert [one.event for one in (first, again, last)] == [
        Event.FIRING,
        Event.FIRING,
        Event.RESOLVED,
    ]


def test_what_is_given_up_holds_up_nothing(conn: Connection) -> None:
    hook(conn)
    queue(conn, Event.FIRING)
    queue(conn, Event.RESOLVED)
    settle(conn, claim(conn), GaveUp("HTTP 500", 500))

    assert claim(conn).event is Event.RESOLVED


@pytest.mark.parametrize("alarm", [2, None])
def test_one_alarm_does_not_wait_for_another(conn: Connection, alarm: int | None) -> None:
    hook(conn)
    queue(conn, alarm=1)
    queue(conn, alarm=alarm)
    first = claim(conn)
    settle(conn, first, RetryAt(NOW + 5 * HOUR, "HTTP 500", 500))

    assert claim(conn).id != first.id


def test_notices_about_no_alarm_have_no_order(conn: Connection) -> None:
    hook(conn)
    queue(conn, Event.TEST, alarm=None)
    queue(conn, Event.TEST, alarm=None)
    first = claim(conn)
    settle(conn, first, RetryAt(NOW + 5 * HOUR, "HTTP 500", 500))

    assert claim(conn).id != first.id


def test_one_webhook_does_not_wait_for_another(conn: Connection) -> None:
    one, other = hook(conn), hook(conn)
    queue(conn)

    taken = {claim(conn).webhook.id, claim(conn).webhook.id}

    assert taken == {one.id, other.id}


def test_a_receiver_that_takes_its_time_keeps_one_worker_busy_and_not_all(
    conn: Connection,
) -> None:
    hook(conn)
    queue(conn, alarm=1)
    queue(conn, alarm=2)
    first = claim(conn)

    assert nothing_to_claim(conn)
    settle(conn, first, Delivered(200))
    assert something_to_claim(conn)


# What became of it.


def test_what_arrived_is_delivered(conn: Connection) -> None:
    owner = hook(conn)
    queue(conn)
    settle(conn, claim(conn), RetryAt(NOW + HOUR, "HTTP 500", 500))

    ours = settle(conn, claim(conn), Delivered(204))

    found = only(conn, owner)
    assert ours
    assert (found.state, found.status_code, found.error, found.attempts) == (
        State.DELIVERED,
        204,
        None,
        2,
    )
    assert found.settled_at == NOW + HOUR
    assert nothing_to_claim(conn)


def test_what_failed_is_due_again_later(conn: Connection) -> None:
    owner = hook(conn)
    queue(conn)

    settle(conn, claim(conn), RetryAt(NOW + 2 * HOUR, "no answer"))

    found = only(conn, owner)
    assert (found.state, found.due_at, found.error, found.status_code, found.settled_at) == (
        State.PENDING,
        NOW + 2 * HOUR,
        "no answer",
        None,
        None,
    )
    # The lease is over as well, or it would be found too late.
    assert something_to_claim(conn, 2 * HOUR)


def test_what_is_given_up_is_dead(conn: Connection) -> None:
    owner = hook(conn)
    queue(conn)

    settle(conn, claim(conn), GaveUp("given up", 500))

    found = only(conn, owner)
    assert (found.state, found.error, found.status_code) == (State.DEAD, "given up", 500)
    assert found.settled_at == NOW + HOUR
    assert webhooks.get(conn, owner.id).disabled_at is None
    assert nothing_to_claim(conn)


def test_a_receiver_that_is_gone_is_told_nothing_more(conn: Connection) -> None:
    owner = hook(conn)
    queue(conn)

    settle(conn, claim(conn), GaveUp("HTTP 410", 410, gone=True))

    found = webhooks.get(conn, owner.id)
    assert (found.disabled_at, found.disabled_because) == (NOW + HOUR, "HTTP 410")
    assert queue(conn) == 0


@pytest.mark.parametrize("outcome", [Delivered(200), GaveUp("HTTP 410", 410, gone=True)])
def test_whose_lease_ran_out_has_no_say(conn: Connection, outcome: Any) -> None:
    owner = hook(conn)
    queue(conn)
    slow = claim(conn)
    claim(conn, HOUR + LEASE)
    before = only(conn, owner)

    ours = settle(conn, slow, outcome, HOUR + LEASE)

    assert not ours
    assert only(conn, owner) == before
    assert webhooks.get(conn, owner.id).disabled_at is None
    assert nothing_to_claim(conn, HOUR + LEASE)


def test_what_was_settled_by_another_stays_so(conn: Connection) -> None:
    owner = hook(conn)
    queue(conn)
    taken = claim(conn)
    settle(conn, taken, Delivered(200))

    ours = settle(conn, taken, GaveUp("HTTP 500", 500))

    assert not ours
    assert only(conn, owner).state is State.DELIVERED


@pytest.mark.parametrize("outcome", [Delivered(200), GaveUp("HTTP 410", 410, gone=True)])
def test_a_webhook_may_be_forgotten_while_something_is_under_way(
    conn: Connection, outcome: Any
) -> None:
    owner = hook(conn)
    queue(conn)
    taken = claim(conn)
    webhooks.forget(conn, owner.id)

    assert not settle(conn, taken, outcome)


# Looking, and sending again.


def test_deliveries_come_newest_first_page_by_page_and_by_state(conn: Connection) -> None:
    owner = hook(conn)
    for alarm in range(4):
        queue(conn, alarm=alarm)
    settle(conn, claim(conn), Delivered(200))

    first = deliveries.page(conn, owner.id, State.PENDING, None, 2)
    rest = deliveries.page(conn, owner.id, State.PENDING, first[-1].id, 2)

    assert [found.alarm_id for found in first + rest] == [3, 2, 1]
    assert [f.alarm_id for f in deliveries.page(conn, owner.id, State.DELIVERED, None, 9)] == [0]


@pytest.mark.parametrize("outcome", [Delivered(200), GaveUp("HTTP 500", 500)])
def test_what_is_settled_can_be_sent_again_as_it_was(conn: Connection, outcome: Any) -> None:
    hook(conn)
    queue(conn)
    before = claim(conn)
    settle(conn, before, outcome)

    again = deliveries.replay(conn, before.id, NOW + 2 * HOUR)

    assert (again.state, again.attempts, again.due_at) == (State.PENDING, 0, NOW + 2 * HOUR)
    assert (again.settled_at, again.status_code, again.error) == (None, None, None)
    assert nothing_to_claim(conn, HOUR)
    assert claim(conn, 2 * HOUR) == before


def test_what_is_pending_is_not_sent_again(conn: Connection) -> None:
    hook(conn)
    queue(conn)
    taken = claim(conn)

    with pytest.raises(Conflict, match="still pending"):
        deliveries.replay(conn, taken.id, NOW)


def test_nothing_is_sent_again_to_a_disabled_webhook(conn: Connection) -> None:
    owner = hook(conn)
    queue(conn)
    taken = claim(conn)
    settle(conn, taken, Delivered(200))
    webhooks.disable(conn, owner.id, "enough", NOW)

    with pytest.raises(Conflict, match="disabled"):
        deliveries.replay(conn, taken.id, NOW)


def test_what_never_was_cannot_be_sent_again(conn: Connection) -> None:
    with pytest.raises(NotFound, match="no delivery 0"):
        deliveries.replay(conn, 0, NOW)


# Several at once, truly committing.


def test_two_workers_never_take_the_same(database: Database) -> None:
    with database.begin() as conn:
        for _ in range(3):
            hook(conn)
        queue(conn)

    with database.begin() as one, database.begin() as two:
        taken = [claim(one), claim(two), claim(one)]
        none_left = nothing_to_claim(two)

    assert len({found.id for found in taken}) == 3
    assert none_left


def started(*jobs: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    return threads


def test_a_webhook_forgotten_at_this_moment_breaks_nothing(database: Database) -> None:
    told: list[int] = []

    def tell() -> None:
        with database.begin() as conn:
            told.append(queue(conn))

    with database.begin() as conn:
        going, staying = hook(conn), hook(conn)
    with database.begin() as conn:
        webhooks.forget(conn, going.id)
        (thread,) = started(tell)
        thread.join(0.3)
        waiting = thread.is_alive()
    thread.join(10)

    assert waiting, "the notice was queued without a look at who is being forgotten"
    assert told == [1]
    with database.begin() as conn:
        assert only(conn, staying).state is State.PENDING


def test_forgetting_waits_for_a_notice_that_is_being_queued(database: Database) -> None:
    with database.begin() as conn:
        going = hook(conn)

    def forget() -> None:
        with database.begin() as conn:
            webhooks.forget(conn, going.id)

    with database.begin() as conn:
        assert queue(conn) == 1
        (thread,) = started(forget)
        thread.join(0.3)
        waiting = thread.is_alive()
    thread.join(10)

    assert waiting
    with database.begin() as conn:
        assert conn.execute(select(func.count()).select_from(delivery)).scalar_one() == 0


def test_a_receiver_that_goes_while_it_is_forgotten_locks_nobody_out(database: Database) -> None:
    with database.begin() as conn:
        owner = hook(conn)
        queue(conn)
        taken = claim(conn)
    settled: list[bool] = []

    def give_up() -> None:
        with database.begin() as conn:
            settled.append(settle(conn, taken, GaveUp("HTTP 410", 410, gone=True)))

    # The webhook is locked, its delivery not yet: the moment at which a deadlock can begin.
    with database.begin() as conn:
        conn.execute(update(webhook).values(url=URL))
        (thread,) = started(give_up)
        thread.join(0.3)
        webhooks.forget(conn, owner.id)
    thread.join(10)

    assert settled == [False]
