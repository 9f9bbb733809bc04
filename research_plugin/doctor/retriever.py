"""Asks the run's retrievers whether they are up, speak the configured api, serve what is expected, and how fast."""

from __future__ import annotations

from pathlib import Path

from research_plugin.config import CUSTOM_KEY
from research_plugin.errors import ResearchPluginError
from research_plugin.finding import FAIL, OK, WARNING, Finding
from research_plugin.search.settings import EMBEDDED, SearchConfig


def check_search(search: SearchConfig, slow: float) -> list[Finding]:
    """Send one probe query to each retriever (`research_plugin.search.check`).

    Args:
        search: The settings a run would use.
        slow: Seconds of a probe from which on a retriever is warned about.
    """
    from research_plugin.search.check import check_retriever_blocking

    if EMBEDDED in search.endpoints:
        if not Path(str(search.corpus)).is_file():
            return [Finding("retriever", FAIL, f"{CUSTOM_KEY}.search.corpus={search.corpus} is not a file")]
        return [Finding("retriever", OK, f"the run starts its own over {search.corpus}")]
    try:
        reports = check_retriever_blocking(search, timeout=max(5.0, 2 * slow))
    except ResearchPluginError as error:
        return [Finding("retriever", FAIL, f"{CUSTOM_KEY}.{error}")]
    findings = []
    for url, report in reports.items():
        if search.engine == "in_process":
            text = f"BM25 over {url} inside each agent-loop worker"
        else:
            text = f"{url} ({report['api']}): {report['documents']} documents in {report['seconds']:.2f} s"
        status = OK
        if report["seconds"] > slow:
            status = WARNING
            text += f", more than {slow:g} s for one query on an idle server: is the index in memory, on a GPU?"
        elif not report["documents"] and search.engine == "http":
            status = WARNING
            text += ": is its corpus empty?"
        findings.append(Finding("retriever", status, text))
        if report["note"]:
            findings.append(Finding("retriever", WARNING, report["note"]))
    return findings
