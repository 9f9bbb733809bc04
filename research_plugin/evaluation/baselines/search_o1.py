"""Prompted agentic search with a reading step, the idea of Search-o1 (arXiv 2501.05366).

The model is asked to search while it thinks; another call condenses the passages to what the next step needs, and only
that enters the thinking. Searches and findings are turns of a chat, which every server can serve.
"""

from __future__ import annotations

from research_plugin.evaluation.method import Attempt, World
from research_plugin.evaluation.prompts import fill, list_passages, load
from research_plugin.prompts import chat_messages
from research_plugin.rewards.answer import last_boxed, unwrap_latex

_SEARCHES = 10
_OPEN, _CLOSE = "<search>", "</search>"
_SPENT = "No more searches are available. Answer from what is known so far."


async def search_o1(question: str, world: World) -> Attempt:
    """Think, search and read until a reply has no search in it; its box is the answer."""
    messages = chat_messages(load("search_o1"), f"Question: {question}")
    most = world.settings.rounds or _SEARCHES
    for number in range(most + 1):
        reply = await world.chat(messages, stop=[_CLOSE])
        query = reply.text.rpartition(_OPEN)[2].strip() if _OPEN in reply.text else ""
        if not query or not reply.complete:
            break
        messages.append({"role": "assistant", "content": reply.text + _CLOSE})
        thinking = "\n".join(message["content"] for message in messages if message["role"] == "assistant")
        found = _SPENT if number == most else await _read(question, thinking, query, world)
        messages.append({"role": "user", "content": f"<result>\n{found}\n</result>"})
    else:
        reply = await world.chat(messages)
    answer = last_boxed(reply.text)
    stop_reason = "answered" if reply.complete else "max_length"
    return world.attempt(None if answer is None else unwrap_latex(answer).strip(), stop_reason)


async def _read(question: str, thinking: str, query: str, world: World) -> str:
    """Search, and let the model write down what helps."""
    passages = list_passages(await world.search(query))
    text = fill("search_o1_read", question=question, thinking=thinking, query=query, passages=passages)
    return (await world.chat(chat_messages("", text))).text
