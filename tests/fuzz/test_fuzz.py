"""Every parser of bytes from outside, with inputs that nobody meant to write: the same ones each time."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.engine import FuzzError, Target, run, try_one
from tests.fuzz.fuzztable import TARGETS

COUNT = 40
SEED = 20261130


@pytest.mark.bug("B131")
@pytest.mark.bug("B04")
@pytest.mark.bug("B68")
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_only_documented_errors_come_out_in_bounded_time_and_memory(target: Target, tmp_path: Path) -> None:
    tried, taken = run(target, tmp_path, seed=SEED, count=COUNT)
    assert tried > COUNT
    assert taken >= len(target.corpus)


def keys(document: Any) -> set[str]:
    """All keys of a document: values of any shape under the right names reach deepest."""
    if isinstance(document, dict):
        return set(document).union(*(keys(value) for value in document.values()))
    return set().union(*(keys(value) for value in document)) if isinstance(document, list) else set()


def values(corpus: tuple[bytes, ...]) -> st.SearchStrategy[Any]:
    """JSON values whose objects have the keys of the corpus."""
    names = sorted(set().union(*(keys(json.loads(data)) for data in corpus))) or [""]
    scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(names), inner, max_size=4),
        max_leaves=12,
    )


def is_json(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), dict)
    except ValueError:
        return False


STRUCTURED = [target for target in TARGETS if target.corpus and all(map(is_json, target.corpus))]


@pytest.mark.bug("B131")
@pytest.mark.parametrize("target", STRUCTURED, ids=lambda target: target.name)
def test_documents_of_any_shape_under_the_right_names_are_read_or_refused(target: Target) -> None:
    @settings(max_examples=12)
    @given(values(tuple(target.corpus)))
    def tried(value: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            try_one(target, json.dumps(value).encode(), Path(folder), 0)

    tried()


def test_an_error_that_is_not_documented_is_told_with_its_input(tmp_path: Path) -> None:
    target = Target("faulty", lambda data, _folder: data.decode("ascii"), (), [b"x"])
    with pytest.raises(FuzzError, match=r"(?s)faulty: raised UnicodeDecodeError.*input \("):
        run(target, tmp_path, seed=1, count=50)


def test_an_input_that_is_valid_and_refused_is_told(tmp_path: Path) -> None:
    target = Target("faulty", lambda data, _folder: int(data), (ValueError,), [b"x"])
    with pytest.raises(FuzzError, match="refuses what its corpus calls valid"):
        run(target, tmp_path, seed=1, count=1)
