"""What a client knows of the state that it loaded."""

from __future__ import annotations

from pydp2.client.loaded_state import MAX_REJOIN_BATCHES, LoadedState


def test_a_state_is_asked_for_until_the_service_answers() -> None:
    loaded = LoadedState()
    assert (loaded.name, loaded.is_repeat) == ("", False)
    loaded.load("a")
    assert (loaded.name, loaded.is_repeat) == ("a", False)
    loaded.note_asked()
    assert (loaded.name, loaded.is_repeat) == ("a", True), "it has been asked for"
    loaded.note_answered()
    loaded.note_asked()
    assert (loaded.name, loaded.is_repeat) == ("", False)


def test_a_client_goes_back_once_to_the_state_that_it_loaded_itself() -> None:
    loaded = LoadedState()
    assert not loaded.rejoin("")
    assert not loaded.rejoin("a")
    loaded.load("a")
    loaded.note_answered()
    assert not loaded.rejoin("b")
    assert not loaded.rejoin("")
    assert loaded.rejoin("a")
    loaded.note_answered()
    assert loaded.rejoin("a"), "it was interrupted before a run asked for it"
    assert (loaded.name, loaded.is_repeat) == ("a", True)
    loaded.note_asked()
    loaded.note_answered()
    assert not loaded.rejoin("a"), "ranks that load it again and again would never get anywhere"


def test_a_client_whose_batches_may_go_to_others_does_not_go_back_once_it_has_had_one() -> None:
    loaded = LoadedState(dynamic=True)
    loaded.load("a")
    assert loaded.rejoin("a")
    loaded.load("a")
    loaded.note_batch()
    assert not loaded.rejoin("a")
    loaded.load("a")
    loaded.note_pass_end()
    assert not loaded.rejoin("a")


def test_a_client_is_new_until_it_is_answered() -> None:
    loaded = LoadedState()
    loaded.note_asked()
    assert not loaded.was_answered
    loaded.note_answered()
    assert loaded.was_answered


def test_a_client_that_has_had_many_batches_since_does_not_go_back() -> None:
    loaded = LoadedState()
    loaded.load("a")
    for _ in range(MAX_REJOIN_BATCHES):
        loaded.note_batch()
    assert loaded.rejoin("a")
    loaded.load("a")
    for _ in range(MAX_REJOIN_BATCHES + 1):
        loaded.note_batch()
    assert not loaded.rejoin("a")
