"""Pages and docstrings are plain: few pronouns, negations and "of", short sentences, terms explained, telling names."""

import ast
import re
from pathlib import Path

import pytest

from tests.commands import ROOT

README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
FROM_CODE = [ROOT / "docs/settings.md", ROOT / "docs/cli.md", ROOT / "docs/api.md"]  # their words are those of the code
PAGES = [README, ROOT / "CONTRIBUTING.md", *DOCS, *sorted((ROOT / "examples").rglob("*.md"))]
MOST_WORDS = 30  # in a sentence
MOST_ON_README, MOST_IN_ALL = 850, 18_000  # words of README, and of README and docs; who adds some takes as many away
FEWEST_WORDS = 100  # of prose, from which on the rates of a single page say something
WORDS = {
    "pronouns": r"it|its|they|them|their|those|these|one|ones|other|others",
    "negations": r"no|not|never|none|nothing|nobody|neither|nor|cannot",
    "of": r"of",
}
# Per 1,000 words: for README, and for all pages of docs together; and for each page alone.
TOGETHER = {"pronouns": 10, "negations": 7, "of": 20}
ALONE = {"pronouns": 25, "negations": 20, "of": 40}
DOCSTRINGS = {"pronouns": 13, "negations": 9, "of": 20}  # per 1,000 words of all docstrings of the package
UNUSED = r"anew|at hand|so many|those of|that of|learnt|foretold|meanwhile|beside"  # words of riddles
FILLERS = {"found", "place", "each", "what", "known", "now", "then", "own", "of"}  # names that say nothing
# Who reads the pages in this order finds each term explained, in emphasis, on the first page that uses it.
READING_ORDER = ("README", "docs/forecast-my-data", "docs/compare-a-model", "docs/use-the-gpu", "docs/zero-shot")
READING_ORDER += ("docs/model", "docs/accuracy", "docs/performance", "docs/serving", "docs/operations", "docs/data")
TERMS = [
    *("zero-shot", "fine-tun", "naive", "climatology", "climatology window", "encoder", "prediction interval"),
    *("observation", "lookback", "horizon", "forecast origin", "lead time", "preset", "baseline", "historical average"),
    *("test split", "protocol", "adjacency", "learned adjacency", "scaler", "confidence interval", "congest"),
    *("free-flow speed", "free-flow ratio", "starved", "token", "embedding", "coverage", "teacher", "distil"),
    *("covariate", "attention sink", "gate radius", "world size"),
]


def prose(text: str) -> str:
    """Return the text without code, tables, pictures, comments and the targets of links."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^(\||    |!\[|<!--|.*\| ).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "`", text)
    return re.sub(r"\]\([^)]*\)|https?://\S+", "]", text)


def rates(text: str) -> dict[str, float]:
    """Return how often each kind of word occurs in 1,000 words of prose."""
    text = prose(text)
    words = len(re.findall(r"[A-Za-z][\w'-]*", text))
    return {kind: 1000 * len(re.findall(rf"\b(?:{w})\b", text, re.IGNORECASE)) / words for kind, w in WORDS.items()}


def too_many(text: str, limits: dict[str, int]) -> dict[str, float]:
    """Return the rates that are above their limits."""
    return {kind: round(rate, 1) for kind, rate in rates(text).items() if rate > limits[kind]}


def sentences(text: str) -> list[str]:
    """Return what ends in a full stop, a question mark or a colon; a paragraph or a list item ends a sentence too."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^(\||#|    |!\[|.*\| ).*$", "\n", text, flags=re.MULTILINE)
    parts = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text)
    return [sentence for part in parts for sentence in re.split(r"(?<=[.?:;])[*`)\"]*\s+", part.strip()) if sentence]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path) -> None:
    long = [sentence for sentence in sentences(page.read_text()) if len(sentence.split()) > MOST_WORDS]
    assert not long, "\n\n".join(f"{len(sentence.split())} words: {sentence}" for sentence in long)


def test_the_rates_are_counted_in_prose_alone() -> None:
    text = "It is one of `it` [of](of) words.\n\n| it | of |\n\n    it of\n\n```\nit of\n```\n\nNever again.\n"
    assert len(re.findall(r"[A-Za-z]+", prose(text))) == 8  # It is one of [of] words. Never again.
    assert rates(text) == {"pronouns": 250, "negations": 125, "of": 250}


@pytest.mark.parametrize("pages", [[README], DOCS], ids=["README", "docs"])
def test_nouns_and_verbs_carry_the_sentences(pages: list[Path]) -> None:
    assert not too_many("\n\n".join(page.read_text() for page in pages), TOGETHER)


@pytest.mark.parametrize("page", sorted({README, *DOCS} - {*FROM_CODE}), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_is_a_riddle(page: Path) -> None:
    text = page.read_text()
    if len(prose(text).split()) >= FEWEST_WORDS:
        assert not too_many(text, ALONE)


@pytest.mark.parametrize("term", TERMS)
def test_a_term_is_explained_where_it_is_used_first(term: str) -> None:
    texts = [(ROOT / f"{name}.md").read_text() for name in READING_ORDER]
    spaced = term.replace(" ", r"\s+")
    first = next(text for text in texts if re.search(rf"\b{spaced}", prose(text), re.IGNORECASE))
    assert re.search(rf"\*{spaced}", first, re.IGNORECASE), first[:60]


def test_the_pages_do_not_grow() -> None:
    """A word has a letter or a digit: bars of tables and signs of lists are none."""
    words = {page: len(re.findall(r"\S*\w\S*", page.read_text())) for page in [README, *DOCS]}
    assert words[README] <= MOST_ON_README
    assert sum(words.values()) <= MOST_IN_ALL, sum(words.values())


@pytest.fixture(scope="module")
def nodes() -> list[tuple[Path, ast.AST]]:
    """Return all nodes of the package's syntax trees."""
    paths = sorted((ROOT / "socialx").rglob("*.py"))
    return [(path, node) for path in paths for node in ast.walk(ast.parse(path.read_text()))]


@pytest.fixture(scope="module")
def docstrings(nodes: list[tuple[Path, ast.AST]]) -> list[str]:
    """Return all docstrings of the package."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    return [text for _, node in nodes if isinstance(node, kinds) and (text := ast.get_docstring(node))]


def test_docstrings_name_their_nouns(docstrings: list[str]) -> None:
    assert too_many("\n\n".join(docstrings), DOCSTRINGS) == {}


def test_docstrings_have_no_riddles(docstrings: list[str]) -> None:
    assert [text for text in docstrings if re.search(rf"\b(?:{UNUSED})\b", prose(text), re.IGNORECASE)] == []


def test_names_are_nouns_and_verbs(nodes: list[tuple[Path, ast.AST]]) -> None:
    """No function is named by a preposition, and no variable or parameter by a word that fits everything."""
    functions = [node.name for _, node in nodes if isinstance(node, ast.FunctionDef)]
    assert [name for name in functions if re.fullmatch(r"_?of(_.*)?|.*_of", name)] == []
    stored = {(path.name, n.id) for path, n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    stored |= {(path.name, node.arg) for path, node in nodes if isinstance(node, ast.arg)}
    assert {pair for pair in stored if pair[1] in FILLERS} == set()
