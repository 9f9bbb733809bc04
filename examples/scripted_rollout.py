"""Shows one rollout token by token: who wrote each token (mask), and the log-probability that goes with it.

The engine is a script and a token is a word, so nothing needs to be installed: python examples/scripted_rollout.py
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from research_plugin.document import Document
from research_plugin.protocol import RESEARCH
from research_plugin.search_loop import Episode, Generation, Limits, run_search_loop

TURNS = ["<search> Glass Harbour director </search>", " <answer> \\boxed{Ada Quill} </answer>"]


class WordCodec:
    """Every tag, word or stretch of white space is a token, numbered as it is first seen; no text yields token 0."""

    def __init__(self) -> None:
        self.words = ["<end>"]
        self.end_ids = {0}
        self.longest_token = 100  # characters; no word here is longer

    def encode(self, text: str) -> list[int]:
        found = re.findall(r"</?(?!end>)\w+>|\s+|<|[^\s<]+", text)
        self.words += [word for word in dict.fromkeys(found) if word not in self.words]
        return [self.words.index(word) for word in found]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.words[token] for token in ids)


async def play() -> tuple[Episode, WordCodec]:
    """Run the two scripted turns against a retriever that knows one passage."""
    codec, turns = WordCodec(), iter(TURNS)

    async def generate(context_ids: list[int], max_tokens: int) -> Generation:
        turn = next(turns)
        ids = [*codec.encode(turn), *([] if turn.endswith(RESEARCH.stop) else codec.end_ids)][:max_tokens]
        return Generation(ids, [-0.1 * (index % 5 + 1) for index in range(len(ids))])

    async def search(query: str) -> list[Document]:
        return [Document("0", '"Glass Harbour"\nDirected by Ada Quill.')]

    prompt = codec.encode("Who directed Glass Harbour?")
    limits = Limits(response_length=100)
    episode = await run_search_loop(
        prompt, generate=generate, search=search, codec=codec, dialect=RESEARCH, limits=limits
    )
    return episode, codec


def main() -> None:
    """Print one line a token."""
    episode, codec = asyncio.run(play())
    rollout = episode.rollout
    print("mask  log-prob  token")
    for token, mask, log_prob in zip(rollout.response_ids, rollout.response_mask, rollout.log_probs, strict=True):
        print(f"{mask:>4}  {log_prob:>8.1f}  {codec.decode([token])!r}")
    reason = rollout.stop_reason.value if rollout.stop_reason else None
    print(f"{reason}: {rollout.generated_tokens} tokens of the policy, {rollout.retrieved_tokens} retrieved")


if __name__ == "__main__":
    main()
