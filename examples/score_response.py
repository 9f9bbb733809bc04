"""Shows how responses are scored and why: the paper's rules beside those of the authors' released code.

python examples/score_response.py
"""

from __future__ import annotations

from research_plugin.protocol import RESEARCH
from research_plugin.rewards import compute_score

QUESTION = "Where was the director of Glass Harbour born?"
GOLDEN_ANSWERS = ["Torvale"]
SEARCH = "<think> Who directed it? </think> <search> director of Glass Harbour </search>" + RESEARCH.wrap(
    '"Glass Harbour"\nThe film was directed by Ada Quill, born in Torvale.'
)
RESPONSES = {
    "right": SEARCH + "<think> Torvale. </think> <answer> It is \\boxed{Torvale} </answer>",
    "half right": SEARCH + "<think> Torvale. </think> <answer> It is \\boxed{the city of Torvale} </answer>",
    "wrong, good format": SEARCH + "<think> Hm. </think> <answer> It is \\boxed{Brenlow} </answer>",
    "LaTeX in the box": SEARCH + "<think> Torvale. </think> <answer> \\boxed{\\text{Torvale}} </answer>",
    "no thinking": "<answer> It is \\boxed{Torvale} </answer>",
    "no box": SEARCH + "<think> Torvale. </think> <answer> Torvale </answer>",
    "made-up result": "<think> a </think> <result> Brenlow </result> <answer> \\boxed{Brenlow} </answer>",
}


def main() -> None:
    """Print the score of every response under both rule sets, and the paper rules' reason."""
    print(f"{QUESTION}  golden answers: {GOLDEN_ANSWERS}\n")
    print(f"{'response':<20} {'paper':>6} {'released':>9} {'f1':>6}  reason")
    for name, response in RESPONSES.items():
        paper = compute_score("example", response, GOLDEN_ANSWERS)
        released = compute_score("example", response, GOLDEN_ANSWERS, rules="released")
        print(f"{name:<20} {paper['score']:>6.3f} {released['score']:>9.3f} {paper['f1']:>6.3f}  {paper['reason']}")


if __name__ == "__main__":
    main()
