"""The text protocol between policy and environment: tags, actions and observations, one `Dialect` value a method.

Pure text in, values out. It knows nothing of tokens, engines, retrievers or rewards. To add a dialect, write one
`Dialect` value in a module of your own and set ``custom.protocol=my_module:NAME``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

from research_plugin.document import Document
from research_plugin.errors import ConfigError

__all__ = [
    "DIALECTS",
    "R1_SEARCHER",
    "RESEARCH",
    "SEARCH_R1",
    "Dialect",
    "Segment",
    "get_dialect",
    "parse_query",
    "parse_response",
    "register_dialect",
]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One method's tags and the exact text its environment inserts.

    The observation for documents d1..dk is ``result_prefix + (d1 .. dk as `document` lays them out, stripped) +
    result_suffix``; it is appended straight after the sampled tokens, whatever white space those end with.
    """

    name: str
    search_open: str
    search_close: str
    result_prefix: str
    """Inserted before the documents, opening tag included."""
    result_suffix: str
    """Inserted after the documents, closing tag included. An observation always ends with it."""
    document: str
    """One document: ``{contents}``, or its ``{title}`` (first line) and ``{text}`` (the rest); ``{number}`` from 1."""
    no_documents: str
    """What stands in the place of the documents when a search found nothing."""
    empty_query_notice: str
    """What stands in the place of the documents when there was no query to search."""
    budget_notice: str
    """What stands in the place of the documents once the search budget is spent and the rollout goes on."""
    answer_close: str = ""
    """Closing tag that ends the rollout, as a stop string of the engine; "": only an end token does."""
    invalid_notice: str = ""
    """Inserted as it is when a turn ends with neither a search nor an answer; "": the rollout then ends."""
    prefill: str = ""
    """Text at the end of every prompt, from which the policy goes on."""
    clean_query: bool = False
    """Take double quotes out of a query and put single spaces between its words."""

    def __post_init__(self) -> None:
        """Refuse a dialect without tags: nothing could then end a turn or an observation."""
        for name in ("name", "search_open", "search_close", "result_prefix", "result_suffix"):
            if not getattr(self, name).strip():
                raise ConfigError(f"dialect {self.name!r}: {name} is blank; a tag of at least one character is needed")
        try:
            self.format_observation([Document("", "title\ntext")])
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(
                f"dialect {self.name!r}: document={self.document!r} cannot be filled in ({error!r}); allowed fields: "
                "{contents}, {title}, {text}, {number}"
            ) from error

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a turn in the engine."""
        return (self.search_close, self.answer_close) if self.answer_close else (self.search_close,)

    @property
    def result_open(self) -> str:
        """The opening tag of an observation, without the white space around it."""
        return self.result_prefix.strip()

    @property
    def result_close(self) -> str:
        """The closing tag of an observation, without the white space around it."""
        return self.result_suffix.strip()

    def format_observation(self, documents: Sequence[Document]) -> str:
        """Return the text inserted for ``documents``; none at all gives `no_documents` between the tags."""
        body = "".join(self._lay_out(number, document) for number, document in enumerate(documents, start=1))
        return self.wrap(body.strip() or self.no_documents)

    def _lay_out(self, number: int, document: Document) -> str:
        title, _, text = document.contents.partition("\n")
        return self.document.format(number=number, contents=document.contents, title=title, text=text)

    def wrap(self, body: str) -> str:
        """Return ``body`` as an observation."""
        return self.result_prefix + body + self.result_suffix


# ReSearch, arXiv 2503.19470: the released code inserts " <result>\n", the passages, each followed by a blank line and
# the whole stripped, then "\n</result>" and nothing more. Released checkpoints depend on every one of these bytes.
RESEARCH = Dialect(
    name="research",
    search_open="<search>",
    search_close="</search>",
    result_prefix=" <result>\n",
    result_suffix="\n</result>",
    document="{contents}\n\n",
    no_documents="No passage was found for this query.",
    empty_query_notice="The search was empty: no query stood between the search tags.",
    budget_notice="No more searches are available. Answer from what is known so far.",
)

# R1-Searcher, arXiv 2503.05592 (experience_maker.py of its release): plain-text tags, numbered documents. Between the
# closing tag of a query and the documents stand two line breaks, which are the environment's here.
R1_SEARCHER = Dialect(
    name="r1_searcher",
    search_open="<|begin_of_query|>",
    search_close="<|end_of_query|>",
    result_prefix="\n\n<|begin_of_documents|>\n",
    result_suffix="\n<|end_of_documents|>\n\n",
    document="({number}){contents}\n",
    no_documents="None",
    empty_query_notice="None",
    budget_notice="None",
    prefill="<think>",
    clean_query=True,
)

# Search-R1, arXiv 2503.09516 (generation.py of its release). A turn that neither searches nor answers gets a notice.
SEARCH_R1 = Dialect(
    name="search_r1",
    search_open="<search>",
    search_close="</search>",
    result_prefix="\n\n<information>",
    result_suffix="</information>\n\n",
    document="Doc {number}(Title: {title}) {text}\n",
    no_documents="No passage was found for this query.",
    empty_query_notice="The search was empty: no query stood between the search tags.",
    budget_notice="No more searches are available. Answer from what is known so far.",
    answer_close="</answer>",
    invalid_notice=(
        "\nThat was neither a search nor an answer. To look something up I write the query between <search> and "
        "</search>; to finish I write the answer between <answer> and </answer>. I go on.\n"
    ),
)

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (RESEARCH, R1_SEARCHER, SEARCH_R1)}


def register_dialect(dialect: Dialect) -> Dialect:
    """Make ``dialect`` available under its name; the same name again must be the same value.

    Raises:
        ConfigError: another dialect already has that name.
    """
    known = DIALECTS.setdefault(dialect.name, dialect)
    if known != dialect:
        raise ConfigError(f"dialect {dialect.name!r} is already registered with other tags; choose another name")
    return dialect


def get_dialect(name: str) -> Dialect:
    """Return the dialect called ``name``, or the one that ``"package.module:NAME"`` names.

    The second form needs no registration, so it works in every process that can import the module.

    Raises:
        ConfigError: no dialect has that name, or the module holds no `Dialect` under it.
    """
    module, colon, attribute = name.partition(":")
    if colon:
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"cannot import the protocol {name!r}: {error}; is it on PYTHONPATH? (key: protocol)"
            ) from error
        if not isinstance(found, Dialect):
            raise ConfigError(f"{name} is a {type(found).__name__}; a Dialect is needed (key: protocol)")
        return found
    try:
        return DIALECTS[name]
    except KeyError:
        raise ConfigError(
            f"unknown protocol {name!r}; allowed: {', '.join(sorted(DIALECTS))} (key: protocol)"
        ) from None


def parse_query(text: str, dialect: Dialect = RESEARCH) -> str | None:
    """Return the query that ends ``text``, one policy-written turn, or None when the turn did not end a search.

    A turn ends a search when it holds `search_close`. The query is what stands between the last `search_close` and the
    last `search_open` before it, stripped; it is "" when nothing does, or when this turn never opened a search.
    """
    end = text.rfind(dialect.search_close)
    if end < 0:
        return None
    start = text.rfind(dialect.search_open, 0, end)
    query = "" if start < 0 else text[start + len(dialect.search_open) : end].strip()
    return " ".join(query.replace('"', "").split()) if dialect.clean_query else query


LONGEST_TAIL = 15
"""Most characters that the token which completes a closing tag may hold after it, white space aside."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a response and who wrote it: the policy, or the environment (an observation)."""

    text: str
    by_policy: bool


def parse_response(text: str, dialect: Dialect = RESEARCH) -> list[Segment]:
    """Split a whole response into policy and environment segments by its text alone, in linear time.

    For responses that did not come from our own rollout, which records who wrote what. An observation is a
    `result_open` that follows a complete search with nothing but white space between, up to the next `result_close`;
    unclosed, it runs to the end (the text was cut). The engine stops at a token, and that token may hold more than
    the closing tag ("</search>."), so up to `LONGEST_TAIL` other characters may stand between if the exact
    `result_prefix` follows. Every other tag is the policy's own writing. The segments' texts concatenate to ``text``.
    """
    segments: list[Segment] = []
    lead = dialect.result_prefix[: -len(dialect.result_prefix.lstrip())]
    trail = dialect.result_suffix[len(dialect.result_suffix.rstrip()) :]
    done = 0  # all before this index is in `segments`
    scan = 0
    while (close := text.find(dialect.search_close, scan)) >= 0:
        after_search = close + len(dialect.search_close)
        opened = text.rfind(dialect.search_open, scan, close) >= 0  # since the last close: keeps this linear
        tail = _tail_end(text, after_search, dialect)
        start = tail
        while start < len(text) and text[start].isspace():
            start += 1
        scan = after_search
        if not (opened and text.startswith(dialect.result_open, start)):
            continue
        if tail > after_search and not text.startswith(dialect.result_prefix, start - len(lead)):
            continue
        end = text.find(dialect.result_close, start)
        end = len(text) if end < 0 else end + len(dialect.result_close)
        end += len(trail) if text.startswith(trail, end) else 0
        # The white space before the tag is the environment's only where it is the dialect's own prefix.
        if text.endswith(lead, tail, start):
            start -= len(lead)
        segments.append(Segment(text[done:start], True))
        segments.append(Segment(text[start:end], False))
        done = scan = end
    if done < len(text) or not segments:
        segments.append(Segment(text[done:], True))
    return segments


def _tail_end(text: str, start: int, dialect: Dialect) -> int:
    """Return where the rest of a token that completed a closing tag ends: at white space, a tag, or too far."""
    end = start
    while (
        end < min(len(text), start + LONGEST_TAIL) and not text[end].isspace() and text[end] != dialect.result_open[0]
    ):
        end += 1
    return end
