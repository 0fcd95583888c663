"""Every fault of the museum is caught, and the decoder as it is passes every check: the tests are tested."""
import re
from dataclasses import replace

import pytest
from specdecode_nb.protocols import museum
from specdecode_nb.protocols.battery import CHECKS, examine
from specdecode_nb.protocols.toy import hybrid
from specdecode_nb.rows.decoding import MuseumRow

BY_ID = {f.id: f for f in museum.FAULTS}
# what a check that is meant for a fault has to see, whatever else sees it too
MEANT = {"A1": "state", "A3": "state", "A4": "exits", "A6": "state", "A11": "identity", "A12": "state", "A14": "state", "A16": "state", "A22": "state",
         "A23": "reuse", "A26": "state", "B1": "stops", "B2": "stops", "B5": "stops", "B6": "stops", "B7": "stops", "B9": "text", "B11": "stops",
         "E1": "counters", "E3": "counters", "E7": "counters", "F2": "acceptance", "F6": "acceptance", "H1": "exits", "H6": "acceptance", "I18": "reuse"}


def test_the_decoder_as_it_is_passes_every_check():
    assert examine() == {}


@pytest.mark.parametrize("id", MEANT)
def test_a_fault_is_caught_by_the_check_meant_for_it_and_is_gone_afterwards(id):
    fault = BY_ID[id]
    before, layers = vars(fault.owner)[fault.name], [type(layer) for layer in hybrid().model.layers]
    with museum.put_in(fault):
        assert vars(fault.owner)[fault.name] is not before
        found = examine()
    assert MEANT[id] in found and all(found.values()) and set(found) <= set(CHECKS), found
    # seen by what the check says, not by an error that a broken check would raise too; with F6 the second drafter cannot even be made
    assert (re.match(r"\w+: ", found[MEANT[id]]) is not None) == (id == "F6"), found
    assert vars(fault.owner)[fault.name] is before and [type(layer) for layer in hybrid().model.layers] == layers


def test_faults_that_change_no_token_are_not_seen_by_identity():
    """Why identity of the text is not enough: one check alone sees each of these."""
    for id, only in (("E1", "counters"), ("F2", "acceptance")):
        with museum.put_in(BY_ID[id]):
            found = examine()
        assert list(found) == [only], id
    assert "the text is right" in found["acceptance"]


def test_there_is_a_check_meant_for_every_fault():
    assert set(MEANT) == set(BY_ID) and len(MEANT) == len(museum.FAULTS) >= 12
    assert set(MEANT.values()) == set(CHECKS)


def test_rows_tell_what_was_put_in_and_what_was_seen(monkeypatch):
    """One row for the decoder as it is, one a fault; a failed check or an error inside one is told, and the function comes back all the same."""
    monkeypatch.setattr(museum, "examine", lambda: {"state": "seen"} if vars(museum.TX)["_keep"] is not kept else {})
    kept = vars(museum.TX)["_keep"]
    rows = list(museum.rows())
    assert [r["fault"] for r in rows] == ["none", *BY_ID] and {r["kind"] for r in rows} == {"museum"}
    for r in rows[1:]:
        assert r["report"].startswith(museum.GITHUB) or r["fault"] == "I18"
        assert r["new"] != r["old"] and r["where"].endswith(BY_ID[r["fault"]].name) and set(MuseumRow.model_fields) == set(r)
        MuseumRow.model_validate(r)
        assert (r["caught_by"], r["symptom"]) == ((["state"], "seen") if BY_ID[r["fault"]].name == "_keep" else ([], ""))
    with pytest.raises(ZeroDivisionError), museum.put_in(BY_ID["A1"]):
        1 / 0
    assert vars(museum.TX)["_keep"] is kept


@pytest.mark.parametrize("old", ["no such line", "c"])
def test_a_fault_that_does_not_fit_the_source_is_an_error(old):
    with pytest.raises(LookupError, match="write the fault A1 anew"), museum.put_in(replace(BY_ID["A1"], old=old)):
        pass
