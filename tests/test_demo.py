"""What the demo is made of: real outputs, a story, a receiver that trusts nobody."""

import time
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hatchling.builders.wheel import WheelBuilder
from standardwebhooks.webhooks import Webhook as Signer

from app.demo import outputs, story
from app.demo.outputs import LABELS, shipped
from app.demo.receiver import is_genuine
from app.demo.run import Errors
from app.demo.story import CAMERA, MANY_SHIRTS, PHASES, SHIRT, SHOP, Phase
from app.demo.tell import heard
from app.domain import notice
from app.stats import moments
from tests import demo_outputs, fashion, fashion_corrupted

ROOT = Path(__file__).parents[1]
QUIET, MORE_SHIRTS, NOISY, REPAIRED = PHASES
MANY = 20_000


def shares(rows: outputs.Floats) -> outputs.Floats:
    """How often each label is predicted."""
    return np.asarray(np.bincount(moments.argmax(rows), minlength=len(LABELS)) / len(rows))


def drawn(model: str, phase: Phase) -> outputs.Floats:
    return story.rows(model, phase, shipped(), MANY, np.random.default_rng(1))


def distance(one: outputs.Floats, other: outputs.Floats) -> float:
    return float(np.abs(one - other).sum() / 2)


def test_the_shipped_file_is_what_the_script_makes_of_the_tests_data() -> None:
    with np.load(outputs.PLACE) as data:
        found = {name: data[name] for name in data.files}

    wanted = demo_outputs.selected()
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def test_outputs_are_read_as_the_tests_read_them() -> None:
    rows = demo_outputs.ROWS
    clean, noisy = fashion.outputs("good", "test"), fashion_corrupted.corrupted("noisy")

    np.testing.assert_allclose(shipped().clean.rows, clean.rows[:rows])
    np.testing.assert_allclose(shipped().noisy.rows, noisy.rows[:rows])
    np.testing.assert_array_equal(shipped().clean.labels, clean.labels[:rows])


def test_no_row_of_the_reference_is_in_the_traffic() -> None:
    reference = {row.tobytes() for row in shipped().reference.rows}

    replayed = {row.tobytes() for pool in (shipped().clean, shipped().noisy) for row in pool.rows}

    assert len(reference) == demo_outputs.ROWS
    assert not reference & replayed


def test_what_is_drawn_has_the_true_mix_that_was_asked_for() -> None:
    pool = shipped().clean
    wanted = story.mix(shipped().reference.mix, MANY_SHIRTS)
    # Each row is its own label, so that what is drawn tells it.
    told = outputs.Outputs(np.eye(len(LABELS))[pool.labels], pool.labels)

    rows = outputs.draw(told, wanted, MANY, np.random.default_rng(1))

    assert wanted[SHIRT] == MANY_SHIRTS
    np.testing.assert_allclose(rows.mean(axis=0), wanted, atol=0.015)


@pytest.mark.parametrize("model", [SHOP, CAMERA])
def test_the_quiet_phase_is_like_the_reference(model: str) -> None:
    usual = shares(shipped().reference.rows)

    assert distance(shares(drawn(model, QUIET)), usual) < 0.02


def test_shirts_become_more_common_in_the_shop_and_nowhere_else() -> None:
    shop = [shares(drawn(SHOP, phase))[SHIRT] for phase in PHASES]
    camera = [shares(drawn(CAMERA, phase)) for phase in (QUIET, MORE_SHIRTS, REPAIRED)]

    assert min(shop[1:]) > 2 * shop[0]
    assert max(distance(one, camera[0]) for one in camera[1:]) < 0.02


def test_noise_moves_the_predicted_mix_and_leaves_the_true_one() -> None:
    usual = shipped().reference.mix
    before, after = shares(drawn(CAMERA, QUIET)), shares(drawn(CAMERA, NOISY))

    np.testing.assert_array_equal(shipped().noisy.labels, shipped().clean.labels)
    assert distance(before, after) > 0.1
    assert distance(shipped().noisy.mix, usual) < 0.02


def test_the_story_begins_at_once_and_goes_on_in_order() -> None:
    begins = [phase.begins for phase in PHASES]

    assert begins[0] == 0.0
    assert all(one < other for one, other in pairwise(begins))
    assert begins[-1] < story.TOLD
    assert story.at(0.0) is QUIET
    assert story.at(MORE_SHIRTS.begins) is MORE_SHIRTS
    assert story.at(1e9) is REPAIRED
    assert [story.following(phase) for phase in PHASES] == [*PHASES[1:], None]


def test_the_service_takes_the_settings_the_reference_and_the_rows(client: TestClient) -> None:
    small = outputs.Outputs(shipped().reference.rows[:2000], shipped().reference.labels[:2000])

    client.put(f"/v1/models/{SHOP}", json=story.settings()).raise_for_status()
    made = client.put(f"/v1/models/{SHOP}/references/v1", json=story.reference(small))
    sent = client.post(
        f"/v1/models/{SHOP}/predictions",
        json={"probabilities": story.written(drawn(SHOP, QUIET)[:500])},
    )

    assert (made.status_code, made.json()["kind"]) == (201, "soft")
    assert sent.json()["accepted"] == 500


def test_the_receiver_believes_what_is_signed_and_nothing_else() -> None:
    secret, body, now = notice.new_secret(), b'{"type": "test"}', int(time.time())
    signer = Signer(secret)
    signed = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(now),
        "webhook-signature": notice.signature(secret, "msg_1", now, body),
    }

    assert signer.verify(body, signed)
    assert is_genuine(secret, signed, body)
    assert is_genuine(
        secret, {**signed, "webhook-signature": f"v1,x {signed['webhook-signature']}"}, body
    )
    assert not is_genuine(secret, signed, body + b" ")
    assert not is_genuine(notice.new_secret(), signed, body)
    assert not is_genuine(secret, {**signed, "webhook-id": "msg_2"}, body)


def test_a_notice_is_one_line_that_says_whether_it_is_genuine() -> None:
    told = {
        "type": "alarm.firing",
        "timestamp": "2026-11-17T14:20:00Z",
        "data": {
            "alarm": {"model": SHOP, "kind": "shift", "verdict": "label_shift", "state": "firing"}
            | {"since": "2026-11-17T14:05:00Z", "onset": None},
            "estimate": {"labels": [{"label": "shirt", "p": 0.1, "q": 0.3}]},
        },
    }

    assert heard(told, genuine=True) == (
        "  14:20:00 alarm.firing (signature ok): fashion-shop: label shift since 14:05 UTC."
        " 'shirt' is about 30.0 % (was 10.0 %)."
    )
    assert "SIGNATURE WRONG" in heard(told, genuine=False)


def test_errors_of_the_service_are_shown_once_and_its_other_lines_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "demo.log"
    log.write_text("2026-11-17T10:00:00.000Z info app.worker an error that is none\n")
    errors = Errors(log)
    with log.open("a") as lines:
        lines.write("2026-11-17T10:00:01.000Z error app.serve child died\n    traceback\n")

    errors.show()
    errors.show()

    assert capsys.readouterr().out == "  2026-11-17T10:00:01.000Z error app.serve child died\n"
    errors.close()


def test_an_installed_package_has_what_the_demo_needs(tmp_path: Path) -> None:
    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))

    with zipfile.ZipFile(wheel) as package:
        stored = package.read("app/demo/fashion.npz")
    assert stored == outputs.PLACE.read_bytes()
    assert len(stored) < 1_000_000
