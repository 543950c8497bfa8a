"""What this driver publishes is clean by its own rules, on every mock profile, whole and divided."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver.analysis.document_text import Value
from driver.analysis.documents import collect, load
from driver.analysis.lint import Options, Severity, lint
from driver.analysis.shape import AttributeKinds
from driver.cli.documents import published, validators
from driver.cli.main import build_parser
from driver.publish.kinds import attribute_kinds

PROFILES = Path(__file__).parents[3] / "native" / "mock" / "profiles"
DEPLOY = Path(__file__).parents[3] / "deploy"
NAMES = sorted(path.stem for path in PROFILES.glob("*.yaml"))
OPTIONS = Options(kinds=AttributeKinds(attribute_kinds("gpu.nvidia.com")), validators=validators())


@pytest.mark.parametrize("mig", ["static", "dynamic"])
@pytest.mark.parametrize("profile", NAMES)
def test_slices_of_a_profile_are_clean_beside_classes_and_demos(
    profile: str, mig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = build_parser(["lint"]).parse_args(["lint", "--mock-profile", profile, "--mig", mig])
    slices = published(args, "node-a")
    capsys.readouterr()

    report = lint(collect([Value(body) for body in slices], profile) + load([DEPLOY]), OPTIONS)

    assert report.problems == ()
    bad = [(entry.rule.id, entry.finding.message) for entry in report.found if entry.severity is not Severity.NOTE]
    assert bad == []
