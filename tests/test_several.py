"""The cost model of several Macs: its limits, and that environment.md shows what it computes."""
from dataclasses import replace

import pytest
from specdecode_nb import paths
from specdecode_nb.book import several
from specdecode_nb.book.several import Assumed, pays_below, predict, whole


def test_environment_shows_the_table_of_the_model():
    text = (paths.root() / "environment.md").read_text()
    assert several.table() in text and several.pays() in text


def test_one_machine_is_the_published_one():
    p, ms = predict(Assumed(500, machines=1)), whole()
    assert p["plain"] == ms["plain"] == pytest.approx(20.118 + 0.8026) and p["cycle"] == pytest.approx(49.8055, rel=0.005)  # the published mean cycle


def test_the_terms_by_hand():
    """Two machines, nothing repeated: half the time, 64 sums, and 64 rows-by-hidden blocks of two bytes sent once each way."""
    assumed = Assumed(100, gigabytes=1, repeated=0)
    assert assumed.forward(20, 5) == pytest.approx(10 + 6.4 + 64 * 5 * 2560 * 2 / 1e6)
    assert replace(assumed, repeated=1).forward(20, 5) - assumed.forward(20, 5) == pytest.approx(10)


@pytest.mark.parametrize("machines", (2, 4, 8))
def test_a_slow_link_favours_drafting_until_only_the_sums_count(machines):
    found = [predict(Assumed(latency, machines)) for latency in (0, 50, 500, 1e9)]
    assert all(a["break_even"] > b["break_even"] and a["speedup"] < b["speedup"] and a["plain_rate"] > b["plain_rate"] for a, b in zip(found, found[1:]))
    assert found[-1]["break_even"] == pytest.approx(2, abs=1e-6) and found[-1]["free"] == pytest.approx(1, abs=1e-6)
    assert found[-1]["speedup"] == pytest.approx(whole()["committed"] / 2, abs=1e-6)


@pytest.mark.parametrize("machines, draft, what", [(2, False, "plain"), (2, True, "cycle"), (4, True, "cycle")])
def test_it_pays_up_to_the_latency_named(machines, draft, what):
    edge, one = pays_below(machines, draft), predict(Assumed(0, 1))[what]
    assert predict(Assumed(0.99 * edge, machines))[what] < one < predict(Assumed(1.01 * edge, machines))[what]
