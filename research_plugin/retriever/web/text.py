"""From what the web sends to plain text."""

from __future__ import annotations

import codecs
import re

# Control characters but for line feeds and tabs, and lone surrogates, which no tokenizer takes.
_NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([\w-]{1,40})", re.IGNORECASE)
# Python's names of the encodings that pages are written in. It has others that take quadratic time (punycode).
_PAGE_ENCODINGS = re.compile(r"utf-(8|16)|ascii|iso8859|iso2022_jp|cp(125|866|874|932|949)|koi8|mac|shift|euc|gb|big5")


def one_line(text: str) -> str:
    """Return the words of a text on a single line."""
    return _NO_TEXT.sub("\ufffd", " ".join(text.split()))


def lines(text: str) -> str:
    """Return the lines of a text that hold something, without outer blanks."""
    kept = (line.strip() for line in text.splitlines())
    return _NO_TEXT.sub("\ufffd", "\n".join(line for line in kept if line))


def decode(body: bytes, charset: str | None) -> str:
    """Decode by the charset of the header, else by the one that the page names, else as UTF-8; never fails."""
    named = _META_CHARSET.search(body[:2048])
    for name in (charset, named and named[1].decode("ascii", "replace")):
        try:
            encoding = codecs.lookup(name).name if name else ""
        except (LookupError, ValueError):
            continue
        if _PAGE_ENCODINGS.match(encoding):
            return body.decode(encoding, "replace")
    return body.decode("utf-8", "replace")


def page_text(html: str) -> str:
    """Return the main text of a page without menus, footers and scripts; "" if there is none.

    trafilatura 2.3.1 took at most 5 s per MiB on hostile HTML (a million list items), 0.8 s on an encyclopedia's.
    """
    import trafilatura

    return lines(trafilatura.extract(html, include_comments=False) or "")
