"""The paper's numbers, against the paper's own source where it lies beside the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bundlemage.models.registry import model_names
from bundlemage.recipe import recipe_names
from bundlemage.studies import paper

SOURCE = Path(__file__).resolve().parents[3] / "shared" / "paper" / "bundlemage-paper.tex"
TABLES = {
    "table:bundle_matching": paper.TABLES["matching"],
    "table:bundle_generation": paper.TABLES["generation"],
    "tab:ablation_matching": paper.TABLES["ablation-matching"],
    "tab:ablation_generation": paper.TABLES["ablation-generation"],
}


def source() -> str:
    if not SOURCE.is_file():
        pytest.skip(f"the paper's source is not at {SOURCE.name} beside the repository")
    return SOURCE.read_text(encoding="utf-8")


def table(label: str) -> str:
    """The lines of a table between its rules, before the label."""
    before = source().split(f"\\label{{{label}}}")[0]
    return before.rpartition("\\toprule")[2].partition("\\bottomrule")[0]


def plain(cell: str) -> str:
    text = re.sub(r"~?\\cite\{[^}]*\}|\\tnote\{[^}]*\}|\(proposed\)|\\midrule", "", cell)
    text = text.replace("\\method", "BundleMage").replace("$\\mathcal{L}_{gen}$", "Lgen")
    text = text.replace("$\\mathcal{L}_{mat}$", "Lmat")
    return re.sub(r"\\(textbf|underline)\{|[{}]", "", text).strip()


def printed_rows(label: str) -> dict[str, list[str]]:
    """Row name → its cells as printed."""
    rows = {}
    for line in table(label).split("\\\\"):
        name, *cells = map(plain, line.split("&"))
        if cells and re.fullmatch(r"\.\d{4}|o\.o\.t", cells[0]):
            rows[name] = cells
    return rows


@pytest.mark.parametrize("label", TABLES)
def test_every_number_of_a_table_is_the_papers(label: str) -> None:
    printed = printed_rows(label)
    assert list(printed) == [row.title for row in TABLES[label]], "the same rows in the same order"
    for row in TABLES[label]:
        cells = printed[row.title]
        # Columns: nDCG of each dataset, then Recall of each, three figures at a time.
        for number, dataset in enumerate(paper.DATASETS):
            parts = [cells[start : start + 3] for start in range(3 * number, len(cells), 9)]
            wanted = [cell for part in parts for cell in part]
            ours = [f"{value:.4f}".lstrip("0") for value in row.figures(dataset).values()]
            assert ours == wanted or (not ours and set(wanted) == {"o.o.t"}), (row.title, dataset)


def test_the_dataset_table_is_the_papers() -> None:
    rows = {}
    for line in table("table:datasets").split("\\\\"):
        name, *cells = map(plain, line.replace("\\%", "%").split("&"))
        if cells and re.fullmatch(r"[\d,]+", cells[0]):
            rows[name.lower()] = [
                number for cell in cells for number in re.findall(r"[\d.]+%?", cell.replace(",", ""))
            ]
    assert list(rows) == list(paper.STATISTICS)
    for name, printed in rows.items():
        ours = [
            f"{value:.2%}"
            if key.endswith("density")
            else f"{value:.2f}"
            if isinstance(value, float)
            else str(value)
            for key, value in paper.STATISTICS[name].items()
        ]
        assert ours == printed, name


def test_the_popularity_bias_is_the_papers() -> None:
    sentence = (
        source().partition("the averaged scores are measured as follows:")[2].partition("For the bundle")[0]
    )
    found = {
        name.lower(): float(value) / 100 for name, value in re.findall(r"(\w+) \(([\d.]+)\\%\)", sentence)
    }
    assert found == pytest.approx(paper.POPULARITY_BIAS)


def test_addresses_are_the_papers() -> None:
    text = source()
    assert all(address in text for address in (*paper.SOURCES.values(), paper.AUTHORS_FILES))


def test_the_issue_names_the_same_figures() -> None:
    """Figures that are known from elsewhere, so that this test needs no file."""
    named = {
        "BPR": 0.3828,
        "NCF": 0.4651,
        "VAE-CF": 0.4788,
        "BR": 0.4319,
        "EFM": 0.4541,
        "DAM": 0.4520,
        "BGCN": 0.3811,
        "GRAM-SMOT": 0.5018,
    }
    ours = {row.title: row.figures("youshu")["ndcg@5"] for row in paper.TABLES["matching"]}
    assert {name: ours[name] for name in named} == named


def test_what_stands_for_a_row_is_a_recipe_or_a_model() -> None:
    known = {name.partition("/")[2] for name in recipe_names()} | set(model_names())
    assert {row.contender for rows in TABLES.values() for row in rows} <= known


def test_a_row_without_figures_says_why() -> None:
    rows = [row for row in paper.TABLES["generation"] if not row.figures("netease")]
    assert [row.title for row in rows] == ["GRAM-SMOT"]
    assert all("7 days" in row.remark for row in rows)
    assert paper.TABLES["matching"][0].figures("sample") == {}
