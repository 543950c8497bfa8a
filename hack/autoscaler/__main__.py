"""``python -m hack.autoscaler golden|build``: ask the autoscalers' own code, or build the autoscalers."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from hack.autoscaler import programs
from hack.autoscaler.build import CLUSTER_AUTOSCALER, KARPENTER, BuildError, build
from hack.autoscaler.questions import questions

GOLDEN = Path(__file__).parents[2] / "tests" / "data" / "autoscaler" / "golden.json"
CORE = "a clone of kubernetes-sigs/cluster-autoscaler (bare or not)"


def main() -> int:
    """Run one verb; 2 with a sentence on standard error where something cannot be built."""
    arguments = _parser().parse_args()
    try:
        if arguments.verb == "golden":
            return _golden(arguments.core)
        if arguments.name == "karpenter":
            print(programs.karpenter(_say))
        else:
            print(programs.cluster_autoscaler(arguments.core, arguments.autoscaler, _say))
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hack.autoscaler", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    golden = verbs.add_parser("golden", help="write tests/data/autoscaler/golden.json anew")
    golden.add_argument("core", type=Path, metavar="CORE", help=CORE)
    names = verbs.add_parser("build", help="build one of the autoscalers into ~/.cache/gpudra, print its path")
    chosen = names.add_subparsers(dest="name", required=True, metavar="NAME")
    chosen.add_parser("karpenter", help="from the Go module proxy")
    core = chosen.add_parser("cluster-autoscaler", help="from two clones")
    core.add_argument("core", type=Path, metavar="CORE", help=CORE)
    core.add_argument("autoscaler", type=Path, metavar="AUTOSCALER", help="a clone of kubernetes/autoscaler")
    return parser


def _golden(repository: Path) -> int:
    binary = build(repository)
    asked = questions()
    text = "\n".join(json.dumps(question) for question in asked)
    done = subprocess.run([str(binary)], input=text, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    cases = [{"question": question, **answer} for question, answer in zip(asked, answers, strict=True)]
    versions = {"clusterAutoscaler": CLUSTER_AUTOSCALER, "karpenter": KARPENTER}
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(case, sort_keys=True, separators=(",", ":")) for case in cases)
    GOLDEN.write_text(f'{{"versions": {json.dumps(versions)}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{len(cases)} answers in {GOLDEN}")
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
