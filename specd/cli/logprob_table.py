"""Log probabilities for people: a line per token, on stderr like all that is told of an answer.

Knows how an answer's entries look as lines, and asks the daemon for the texts of tokens. Leaves
`--json` alone, whose document has the numbers.

Invariant: a table has a line for every entry that came, also where no texts came.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.cells import set_cell_size
from specd_client import CallFailed, Client, TokenLogprob

from specd.cli.answer import DETOKENIZE_LIMIT_S, Answer
from specd.cli.shown import Screen

# A call takes about a millisecond; of more tokens than that nobody reads the texts.
_MAX_TEXTS = 4000
_TEXT_CELLS = 14


async def show_logprobs(answer: Answer, client: Client, screen: Screen) -> None:
    """Tell the log probabilities that came, of the prompt and of each sequence."""
    tables = [("prompt", [*answer.prompt_logprobs])]
    for index in range(len(answer.seeds)):
        name = "answer" if len(answer.seeds) == 1 else f"answer {index + 1}"
        tables.append((name, [entry for delta in answer.deltas(index) for entry in delta.logprobs]))
    try:
        texts = await _texts(client, _ids(entry for _, entries in tables for entry in entries))
    except CallFailed as error:
        texts = {}
        screen.note(f"tokens have no texts here: {error}")
    for name, entries in tables:
        if entries:
            for line in lines(name, entries, texts):
                screen.note(line)


def lines(name: str, entries: Sequence[TokenLogprob], texts: Mapping[int, str]) -> Iterator[str]:
    """A table with a heading."""
    yield f"{set_cell_size(name, _TEXT_CELLS)} {'id':>7} {'logprob':>9} {'rank':>7}  alternatives"
    for entry in entries:
        numbers = f"{'-':>9} {'-':>7}"
        if entry.logprob is not None:
            numbers = f"{entry.logprob:9.4f} {entry.rank:>7}"
        others = "  ".join(
            f"{_shown(other.token_id, texts)} {other.logprob:.4f}" for other in entry.alternatives
        )
        text = set_cell_size(texts.get(entry.token_id, ""), _TEXT_CELLS)
        yield f"{text} {entry.token_id:>7} {numbers}  {others}".rstrip()


def _shown(token_id: int, texts: Mapping[int, str]) -> str:
    return texts.get(token_id, str(token_id))


def _ids(entries: Iterable[TokenLogprob]) -> set[int]:
    found = set[int]()
    for entry in entries:
        found.add(entry.token_id)
        found.update(other.token_id for other in entry.alternatives)
    return found


async def _texts(client: Client, token_ids: set[int]) -> dict[int, str]:
    """Texts in quotes, with what does not show as escapes. Raises CallFailed."""
    if len(token_ids) > _MAX_TEXTS:
        return {}
    return {
        token_id: repr(
            await client.detokenize(
                [token_id], skip_special_tokens=False, timeout_s=DETOKENIZE_LIMIT_S
            )
        )
        for token_id in sorted(token_ids)
    }
