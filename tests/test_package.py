"""The package's own word: floors without caps, a reason for every dependency, one version, two ways to start it."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.commands import ROOT, process

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
GROUPS = PYPROJECT["dependency-groups"] | PROJECT["optional-dependencies"]
EVERYTHING = [*PROJECT["dependencies"], *(dependency for group in GROUPS.values() for dependency in group)]


def test_dependencies_have_floors_and_no_caps() -> None:
    for dependency in EVERYTHING:
        assert re.fullmatch(r"[\w.-]+>=[\d.]+(; sys_platform == 'linux')?", dependency), dependency


def test_the_lock_pins_what_development_and_the_image_install() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert f"torch=={pins['torch']}\n" in (ROOT / "constraints-cpu.txt").read_text()
    (extras,) = re.findall(r"^EXTRAS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    groups = [GROUPS[name] for name in ("dev", "docs", *extras.split(","))]
    names = {name.split(">=")[0].lower() for group in [PROJECT["dependencies"], *groups] for name in group}
    assert names <= set(pins)


def test_every_dependency_has_its_reason() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    for dependency in PROJECT["dependencies"]:
        name = re.escape(dependency.split(">=")[0])
        assert re.search(rf"^[^|\n]*\b{name}\b[^|\n]*\| ", text, re.MULTILINE), dependency


def test_the_tree_for_contributors_is_the_real_one() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## The tree")[1]
    named = set(re.findall(r"^ *(\w+\.py) ", text, re.MULTILINE))
    modules = {p for p in (ROOT / "socialx").rglob("*.py") if p.name != "__init__.py"}
    formats = {p.name for p in modules if p.parent.name == "formats"}  # a new one needs no line
    assert named - {"__init__.py"} - formats == {p.name for p in modules} - formats


def test_python_dash_m_is_the_same_program() -> None:
    import socialx

    assert process("--version").stdout == f"socialx {socialx.__version__}\n"


def test_no_path_of_a_machine_is_in_the_tree() -> None:
    for path in [
        *ROOT.glob("[!.]*.*"),
        ROOT / "Makefile",
        *(p for d in ("socialx", "tests", "docs", "benchmarks", "examples") for p in (ROOT / d).rglob("*")),
    ]:
        if (
            path.name != ".git"
            and path.is_file()
            and path.suffix in (".py", ".md", ".toml", ".yaml", ".json", ".sh", ".txt", "")
        ):
            assert not re.search(r"(?<![\w.])/(root|home|work)/\w", path.read_text()), path


PUBLIC = [
    "AppendResult",
    "CheckFailedError",
    "Comparison",
    "ConformalIntervals",
    "Conversion",
    "DoctorResult",
    "Evaluation",
    "Explanation",
    "ExportModel",
    "FallbackWarning",
    "Forecast",
    "Inspection",
    "Profile",
    "Run",
    "Settings",
    "SettingsError",
    "SocialxError",
    "__version__",
    "append",
    "backfill",
    "calibrate",
    "compare",
    "convert",
    "doctor",
    "download",
    "evaluate",
    "explain",
    "export",
    "inspect",
    "load_model",
    "load_run",
    "load_settings",
    "open_dataset",
    "open_store",
    "predict",
    "profile",
    "report",
    "serve",
    "train",
]


def test_the_public_names_are_these() -> None:
    import socialx

    assert socialx.__all__ == PUBLIC
    for name in PUBLIC[:-1]:
        assert getattr(socialx, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = socialx.nothing


def test_the_package_is_typed() -> None:
    assert (ROOT / "socialx/py.typed").exists()


@pytest.mark.slow
def test_tasks_take_text_or_paths_and_print_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import socialx
    from socialx.core.progress import Epoch, Start
    from tests.commands import small_file

    path, heard = small_file(tmp_path), []
    small, run_dir = {"width": 8, "blocks": 1, "slstm_at": ()}, str(tmp_path / "run")
    run = socialx.train(str(path), model=small, trainer={"max_epochs": 1}, run_dir=run_dir, progress=heard.append)
    assert [type(event) for event in heard if isinstance(event, (Start, Epoch))] == [Start, Epoch]
    assert socialx.load_run(str(run)).epochs == run.epochs
    assert socialx.evaluate([run], baselines=True)[str(run)].at(minutes=15).mae > 0
    forecast = socialx.predict(run)
    frame = forecast.to_frame()
    assert {"sensor", "time", "lead_minutes", "forecast"} < set(frame)
    assert len(frame) == forecast.values.size
    assert socialx.inspect(str(path)).report.sensors == len(socialx.open_store(str(path)).sensors.ids)
    profile = {"steps": 2, "warmup_steps": 0, "trials": False}
    assert socialx.profile(str(path), profile=profile, model=small).window.steps == 2
    assert capfd.readouterr() == ("", "")


def test_a_public_name_stays_what_it_is_when_modules_are_imported() -> None:
    """A module that had the name of a function would take its place in the package once it is imported."""
    import socialx

    package = ROOT / "socialx"
    modules = {path.stem for path in package.glob("*.py")}
    modules |= {path.parent.name for path in package.glob("*/__init__.py")}
    assert not modules & set(socialx.__all__)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository")
def test_the_record_names_the_commit_of_the_source_tree() -> None:
    from socialx.core.environment import commit

    assert commit()
