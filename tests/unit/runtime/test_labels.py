"""Label values stay bounded whatever clients send."""

from extproc.runtime.labels import OVERFLOW, LabelCap


def test_field_bug_103_ten_thousand_fairness_ids_make_a_fixed_number_of_labels() -> None:
    cap = LabelCap(100)
    labels = {cap.label(f"tenant-{number}") for number in range(10_000)}
    assert labels == {f"tenant-{number}" for number in range(100)} | {OVERFLOW}


def test_field_bug_103_odd_values_share_the_overflow_label() -> None:
    cap = LabelCap(100)
    for value in ("", "x" * 65, "x" * 4096, "line\nbreak", "tab\t", OVERFLOW):
        assert cap.label(value) == OVERFLOW
    assert len(cap) == 0
    assert cap.label("other") == "other"
    assert cap.label('quo"te') == 'quo"te'


def test_field_bug_104_known_models_keep_their_name_when_the_cap_is_reached() -> None:
    cap = LabelCap(1, pinned=["llama"])
    assert cap.label("made-up-1") == "made-up-1"
    assert cap.label("made-up-2") == OVERFLOW
    assert cap.label("llama") == "llama"


def test_a_released_value_makes_room_for_another() -> None:
    cap = LabelCap(1)
    assert cap.label("a") == "a"
    assert cap.label("b") == OVERFLOW
    assert cap.release("a")
    assert not cap.release("b")
    assert cap.label("b") == "b"
