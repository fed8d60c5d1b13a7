"""The package's own word: floors without caps, a reason for every dependency, one version, two ways to start it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.commands import ROOT, process

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EVERYTHING = [*PROJECT["dependencies"], *(d for extra in PROJECT["optional-dependencies"].values() for d in extra)]


def test_dependencies_have_floors_and_no_caps() -> None:
    for dependency in EVERYTHING:
        assert re.fullmatch(r"[\w.-]+>=[\d.]+(; sys_platform == 'linux')?", dependency), dependency


def test_every_dependency_has_its_reason() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    for dependency in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["gpu"]]:
        assert re.search(rf"^\| [^|]*\b{re.escape(dependency.split('>=')[0])}\b", text, re.MULTILINE), dependency


def test_the_tree_of_the_architecture_page_is_the_real_one() -> None:
    text = (ROOT / "docs/architecture.md").read_text().split("## Who may")[0]
    named = set(re.findall(r"^ +(\w+\.py) ", text, re.MULTILINE))
    real = {p.name for p in (ROOT / "socialx").rglob("*.py") if p.name != "__init__.py" and p.parent.name != "sources"}
    assert named == real


def test_python_dash_m_is_the_same_program() -> None:
    import socialx

    assert process("--version").stdout == f"socialx {socialx.__version__}\n"


def test_no_path_of_a_machine_is_in_the_tree() -> None:
    for path in [
        *ROOT.glob("*.*"),
        ROOT / "Makefile",
        *(p for d in ("socialx", "tests", "docs", "benchmarks", "examples") for p in (ROOT / d).rglob("*")),
    ]:
        if path.is_file() and path.suffix in (".py", ".md", ".toml", ".yaml", ".json", ".sh", ".txt", ""):
            text = path.read_text()
            assert not re.search(r"(?<![\w.])/(root|home|work)/\w", text), path


def test_the_public_names_work_in_a_notebook(tmp_path: Path) -> None:
    import socialx
    from tests.commands import small_file

    settings = socialx.load_settings(sets=[f"data.path={small_file(tmp_path)}", "model.width=8"], env={}).settings
    precision = socialx.build.machine(settings)
    data = socialx.build.data(settings, precision.device)
    model = socialx.build.model(settings, data)
    scores = socialx.evaluate(model, data.loader("test", 32), precision)
    assert scores[0][-1].count > 0
    assert socialx.open_store(settings.data.path).checksum == data.store.checksum
    assert callable(socialx.fit)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = socialx.nothing
