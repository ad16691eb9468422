"""The page of a reference."""

import re

from fastapi.testclient import TestClient

from tests.factories import CONFUSION, VERSION, register

PATH = f"/models/fraud/references/{VERSION}"


def test_the_confusion_matrix_is_a_table_in_colours(client: TestClient) -> None:
    register(client)

    page = client.get(PATH)

    assert page.status_code == 200
    cells = re.findall(
        r'<td class="heat-(\d)"><span class="share">([^<]+)</span><span class="records">([^<]+)<',
        page.text,
    )
    assert [int(n.replace(",", "")) for _, _, n in cells] == [n for row in CONFUSION for n in row]
    assert cells[0] == ("7", "98.9 %", "9,000")
    assert cells[1] == ("3", "5.5 %", "30")
    assert page.text.count('scope="row"') == 6


def test_what_it_can_show_is_said_in_words(client: TestClient) -> None:
    register(client)

    page = client.get(PATH).text

    known = client.get(f"/v1/models/fraud/references/{VERSION}").json()
    assert f"sigma_min is {known['sigma_min']:.3g} ±" in page
    growth = client.get("/v1/models/fraud/plan").json()["labels"][1]["growth"]
    assert f"+{100 * growth:.1f} points" in page
    assert "An hour with 1,000 predictions shows changes of" in page


def test_the_plan_can_be_made_for_other_traffic(client: TestClient) -> None:
    register(client)

    page = client.get(f"{PATH}?per_hour=100000").text

    assert "An hour with 100,000 predictions" in page
    assert client.get(f"{PATH}?per_hour=0").status_code == 422


def test_labels_that_cannot_be_told_apart_or_have_few_records_are_named(
    client: TestClient,
) -> None:
    client.put("/v1/models/pets", json={"labels": ["cat", "lynx", "dog", "ferret"]})
    confusion = [[800, 750, 50, 0], [750, 800, 50, 0], [50, 50, 900, 0], [0, 0, 0, 20]]
    client.put("/v1/models/pets/references/v1", json={"confusion": confusion}).raise_for_status()

    page = client.get("/models/pets/references/v1").text

    assert "cat and lynx look alike to this classifier" in page
    assert "rough intervals: ferret." in page


def test_an_unknown_reference_is_a_page_that_says_so(client: TestClient) -> None:
    register(client)

    answer = client.get("/models/fraud/references/v9")

    assert answer.status_code == 404
    assert "has no reference &#39;v9&#39;" in answer.text
