"""``python -m hack.autoscaler REPOSITORY``: build the program, ask it, write the golden answers."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from hack.autoscaler.build import CLUSTER_AUTOSCALER, KARPENTER, BuildError, build
from hack.autoscaler.questions import questions

GOLDEN = Path(__file__).parents[2] / "tests" / "data" / "autoscaler" / "golden.json"


def main() -> int:
    """Write the file; 2 where the program cannot be built."""
    parser = argparse.ArgumentParser(prog="python -m hack.autoscaler", description=__doc__)
    parser.add_argument("repository", type=Path, help="a git directory of kubernetes-sigs/cluster-autoscaler")
    try:
        binary = build(parser.parse_args().repository)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
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


if __name__ == "__main__":
    sys.exit(main())
