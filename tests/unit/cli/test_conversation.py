"""What the daemon is sent, whatever happened before."""

from __future__ import annotations

from specd.cli.conversation import Conversation, Message


def _said(*contents: str) -> list[Message]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]


def _talked(*contents: str) -> Conversation:
    conversation = Conversation(None)
    for question, answer in zip(contents[::2], contents[1::2], strict=True):
        conversation.ask(question)
        conversation.answer(answer)
    return conversation


def test_a_question_comes_behind_all_that_was_said() -> None:
    conversation = _talked("1", "one", "2", "two")
    conversation.ask("3")
    assert conversation.messages == _said("1", "one", "2", "two", "3")
    assert conversation.history == _said("1", "one", "2", "two")


def test_the_system_message_comes_first_and_outlives_a_reset() -> None:
    conversation = _talked("1", "one")
    conversation.system = "Be brief."
    conversation.reset()
    conversation.ask("2")
    assert conversation.messages == [{"role": "system", "content": "Be brief."}, *_said("2")]


def test_an_unanswered_question_is_asked_again_or_gives_way_to_the_next() -> None:
    conversation = _talked("1", "one")
    conversation.ask("2")
    assert conversation.retry()
    assert conversation.messages == _said("1", "one", "2")
    conversation.ask("3")
    assert conversation.messages == _said("1", "one", "3")


def test_a_retry_replaces_the_last_answer_once_there_is_a_new_one() -> None:
    conversation = _talked("1", "one", "2", "two")
    assert conversation.retry()
    assert conversation.messages == _said("1", "one", "2")
    assert conversation.history == _said("1", "one", "2", "two")
    conversation.answer("zwei")
    assert conversation.history == _said("1", "one", "2", "zwei")


def test_making_room_leaves_an_unanswered_question_to_ask_again() -> None:
    conversation = _talked("1", "one", "2", "two")
    conversation.ask("3")
    assert conversation.undo()
    assert conversation.retry() and conversation.messages == _said("1", "one", "3")
    conversation.reset()
    assert conversation.retry() and conversation.messages == _said("3")


def test_a_retry_that_failed_and_an_undo_leave_what_was_before() -> None:
    conversation = _talked("1", "one", "2", "two")
    assert conversation.retry() and conversation.undo()
    conversation.answer("zwei")
    assert conversation.history == _said("1", "one", "2", "zwei")


def test_nothing_said_is_nothing_to_undo_or_retry() -> None:
    conversation = Conversation("Be brief.")
    assert not conversation.undo()
    assert not conversation.retry()
