"""Shows a dialect of one's own in one file: its tags, its reward, and one rollout in it by a scripted policy.

Runs without anything installed: python examples/own_dialect/my_dialect.py
Trains with it: recipe/my_dialect.yaml, which names `LIBRARY` and `compute_score` of this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from research_plugin.document import Document
from research_plugin.protocol import Dialect
from research_plugin.rewards import METHODS, Method, Response, compute_score
from research_plugin.rewards.verdict import Reading, Verdict
from research_plugin.search_loop import Episode, Generation, Limits, run_search_loop

__all__ = ["LIBRARY", "compute_score"]

LIBRARY = Dialect(
    name="library",
    search_open="[ask]",
    search_close="[/ask]",
    result_prefix="\n[shelf]\n",
    result_suffix="\n[/shelf]\n",
    document="{number}. {title}: {text}\n",
    no_documents="The shelf is empty.",
    empty_query_notice="Nothing was asked.",
    budget_notice="The library is closed.",
    answer_close="[/answer]",
    invalid_notice="\nI ask with [ask] and [/ask], or answer with [answer] and [/answer].\n",
)


def extract(turns: Sequence[str], dialect: Dialect) -> tuple[str | None, str]:
    """Return the text of the last [answer] block, or None and why there is none."""
    before, closed, _ = "\n".join(turns).rpartition(dialect.answer_close)
    _, opened, answer = before.rpartition("[answer]")
    return (answer.strip(), "") if closed and opened else (None, "no answer block")


def judge(response: Response, reading: Reading) -> Verdict:
    """Return F1, with half of it for an answer that looked nothing up."""
    searched = response.num_searches > 0
    return Verdict(reading.f1 * (1.0 if searched else 0.5), searched, reading.fault or f"F1 {reading.f1:.2f}")


# The recipe's reward_kwargs say method: library. The rules' name is what our base recipe asks for.
METHODS[LIBRARY.name] = Method(LIBRARY, extract, {"paper": judge})


class CharCodec:
    """A tokenizer of one token a character; no text yields the end token, -1."""

    end_ids = frozenset({-1})
    longest_token = 1

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("" if token < 0 else chr(token) for token in ids)


async def play(script: Sequence[str]) -> Episode:
    """Run a rollout whose policy writes the turns of ``script``, against a library of one book."""
    codec, turns = CharCodec(), iter(script)

    async def generate(context_ids: list[int], max_tokens: int) -> Generation:
        return Generation(codec.encode(next(turns))[:max_tokens])

    async def search(query: str) -> list[Document]:
        return [Document("0", "Glass Harbour\nA film directed by Ada Quill.")]

    return await run_search_loop(
        codec.encode("Who directed Glass Harbour?"),
        generate=generate,
        search=search,
        codec=codec,
        dialect=LIBRARY,
        limits=Limits(response_length=1000, max_searches=3),
    )


def main() -> None:
    """Print the rollout, who wrote what, and what it scores."""
    episode = asyncio.run(play(["[ask]Glass Harbour[/ask]", "So it was her. [answer]Ada Quill[/answer]"]))
    rollout = episode.rollout
    for segment in rollout.segments:
        print(f"{'policy' if segment.by_policy else 'library':<8} {segment.text!r}")
    info = {"segments": rollout.segments, "stop_reason": rollout.stop_reason}
    score = compute_score("films", "", ["Ada Quill"], info, method=LIBRARY.name)
    print(f"score {score['score']}, searches {score['num_searches']}, answer {score['pred']!r}: {score['reason']}")


if __name__ == "__main__":
    main()
