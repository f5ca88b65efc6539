"""Stop strings: earliest wins, nothing after it is shown, nothing before it is kept too long."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from specd.text.stopping import StopScan, TextStops

TOKENS = st.lists(st.text("abc", max_size=4), max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=4)


def run(tokens: list[str], stops: list[str], *, include: bool = False) -> tuple[str, str | None]:
    """All released text, and the stop string that matched."""
    scanner = TextStops(stops, include=include)
    shown = ""
    for token in tokens:
        scan = scanner.push(token)
        shown += scan.text
        if scan.matched is not None:
            return shown, scan.matched
    return shown + scanner.flush(), None


def oracle(tokens: list[str], stops: list[str], *, include: bool = False) -> tuple[str, str | None]:
    """The same from the whole text: the first token that completes a match decides."""
    text = ""
    for token in tokens:
        text += token
        found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
        if found:
            start, _, stop = min(found)
            return text[: start + len(stop) if include else start], stop
    return text, None


@given(tokens=TOKENS, stops=STOPS, include=st.booleans())
@example(tokens=["abab", "abc"], stops=["ababc"], include=False)
@example(tokens=["abcd"], stops=["bc", "abcd"], include=True)
@example(tokens=["aabaaabaaac"], stops=["aabaaac"], include=False)
def test_scanning_equals_searching_the_whole_text(
    tokens: list[str], stops: list[str], include: bool
) -> None:
    assert run(tokens, stops, include=include) == oracle(tokens, stops, include=include)


def run_late(tokens: list[str], stops: list[str], first: int, include: bool) -> tuple[str, object]:
    """As `run`, where matches that the first tokens complete do not count."""
    scanner = TextStops(stops, include=include)
    shown = ""
    for index, token in enumerate(tokens):
        scan = scanner.push(token, counts=index >= first)
        shown += scan.text
        if scan.matched is not None:
            return shown, scan.matched
    return shown + scanner.flush(), None


def oracle_late(
    tokens: list[str], stops: list[str], first: int, include: bool
) -> tuple[str, object]:
    """The same from the whole text, whatever a match shares with one that did not count."""
    text = ""
    for index, token in enumerate(tokens):
        before, text = len(text), text + token
        ends = range(before + 1, len(text) + 1) if index >= first else ()
        found = [
            (end - len(s), -len(s), s) for end in ends for s in stops if text[:end].endswith(s)
        ]
        if found:
            start, _, stop = min(found)
            return text[: start + len(stop) if include else start], stop
    return text, None


@given(tokens=TOKENS, stops=STOPS, first=st.integers(0, 12), include=st.booleans())
@example(tokens=["a", "a", "a"], stops=["aa"], first=2, include=False)
@example(tokens=["ab", "ab"], stops=["ab"], first=1, include=False)
@example(tokens=["aabaa", "b"], stops=["aab"], first=1, include=True)
@example(tokens=["abc", "ab", "d"], stops=["abc", "bcabd"], first=2, include=False)
def test_scanning_goes_on_behind_a_match_that_does_not_count(
    tokens: list[str], stops: list[str], first: int, include: bool
) -> None:
    found = run_late(tokens, stops, first, include)
    assert found == oracle_late(tokens, stops, first, include)


@given(tokens=TOKENS, stops=STOPS)
def test_a_match_that_does_not_count_is_not_held_back(tokens: list[str], stops: list[str]) -> None:
    scanner = TextStops(stops, include=False)
    shown, text = "", ""
    for token in tokens:
        text += token
        shown += scanner.push(token, counts=False).text
        begun = {stop[:length] for stop in stops for length in range(1, len(stop))}
        ends = [text[place:] for place in range(len(text))]
        assert text[len(shown) :] == max((e for e in ends if e in begun), key=len, default="")


@given(tokens=TOKENS, stops=STOPS)
def test_only_a_true_prefix_of_a_stop_string_is_held(tokens: list[str], stops: list[str]) -> None:
    scanner = TextStops(stops, include=False)
    shown, text = "", ""
    for token in tokens:
        text += token
        scan = scanner.push(token)
        shown += scan.text
        if scan.matched is not None:
            return
        held = text[len(shown) :]
        ends = [text[place:] for place in range(len(text)) if len(text) - place < 7]
        longest = max((e for e in ends if any(s.startswith(e) for s in stops)), key=len, default="")
        assert held == longest


def test_without_stop_strings_text_passes_through() -> None:
    assert TextStops([], include=False).push("any text") == StopScan("any text")


def test_a_long_stop_string_does_not_delay_other_text() -> None:
    scanner = TextStops(["x" * 200], include=False)
    assert scanner.push("hello") == StopScan("hello")


def test_held_text_is_released_when_the_generation_ends_otherwise() -> None:
    scanner = TextStops(["###"], include=False)
    assert scanner.push("a##") == StopScan("a")
    assert scanner.flush() == "##"


def test_held_text_is_released_when_it_turns_out_to_be_no_stop_string() -> None:
    scanner = TextStops(["###"], include=False)
    assert scanner.push("a##") == StopScan("a")
    assert scanner.push("b") == StopScan("##b")


def test_text_behind_a_match_in_the_same_token_is_never_shown() -> None:
    assert TextStops(["STOP"], include=False).push("a STOP b") == StopScan("a ", "STOP")
    assert TextStops(["STOP"], include=True).push("a STOP b") == StopScan("a STOP", "STOP")


def test_the_earliest_of_two_matches_in_one_token_wins() -> None:
    assert TextStops(["world", "hello"], include=False).push(">hello world") == StopScan(
        ">", "hello"
    )


def test_an_earlier_start_wins_over_an_earlier_end_in_one_token() -> None:
    assert TextStops(["bc", "abcd"], include=False).push("abcd") == StopScan("", "abcd")


def test_the_longest_of_matches_with_one_start_wins() -> None:
    assert TextStops(["ab", "abc"], include=True).push("abcd") == StopScan("abc", "abc")


def test_a_match_completed_by_an_earlier_token_wins_over_a_longer_one() -> None:
    assert run(["ab", "c"], ["ab", "abc"]) == ("", "ab")


def test_stop_strings_of_many_bytes_match_by_character() -> None:
    family = "👩\u200d👩\u200d👧"
    assert run(["une ", "é", "t"], ["é"]) == ("une ", "é")
    assert run(["世", "界!"], ["世界"]) == ("", "世界")
    assert run(["a", *family, "b"], [family], include=True) == ("a" + family, family)


def test_equal_stop_strings_are_one() -> None:
    assert run(["aXb"], ["X", "X"]) == ("a", "X")


def test_the_cost_of_a_token_does_not_grow_with_the_stop_string() -> None:
    # A rescan of the held text for each token would take minutes here.
    size = 200_000
    shown, matched = run(["a"] * (size + 5), ["a" * size + "b"])
    assert (len(shown), matched) == (size + 5, None)
