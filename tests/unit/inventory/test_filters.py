"""Which GPUs of a node are offered, and in how many shares, and what is said of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver.inventory.filters import Policy, Selector, Usage, offered, parse_selectors, parse_shares
from driver.model import Gpu, GpuState, NodeInventory, PciAddress

MODELS = ("NVIDIA A100-SXM4-40GB", "NVIDIA L4", "NVIDIA L40S", None)


def gpu(index: int) -> Gpu:
    uuid = f"GPU-{index:08x}-0000-4000-8000-000000000000"
    return Gpu(PciAddress(0, 0x10 * (index + 1), 0, 0), GpuState.READY, uuid=uuid, product_name=MODELS[index])


NODE = NodeInventory("580.1", (13, 0), "13.1", tuple(gpu(index) for index in range(4)))


def kept(policy: Policy, usage: dict[PciAddress, Usage] | None = None) -> list[int]:
    return [NODE.gpus.index(replace(one, shares=None)) for one in offered(NODE, policy, usage).inventory.gpus]


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("*", [0, 1, 2, 3]),
        ("index=2", [2]),
        ("index=9", []),
        ("0000:20:00.0", [1]),
        ("00000000:20:00.0", [1]),
        ("GPU-00000003-0000-4000-8000-000000000000", [3]),
        ("gpu-00000003", None),
        ("model=NVIDIA L4", [1]),
        ("model=nvidia l4*", [1, 2]),
        ("model=*", [0, 1, 2, 3]),
        ("model=*A100*, index=1", [0, 1]),
        ("model=", None),
        ("index=-1", None),
        ("index=²", None),
        ("0", None),
        ("MIG-1234", None),
    ],
)
def test_a_selector_names_gpus_or_is_refused_with_what_there_is(text: str, chosen: list[int] | None) -> None:
    if chosen is None:
        with pytest.raises(ValueError, match=r"names no GPUs: use a UUID .* or \*"):
            parse_selectors(text)
    else:
        assert kept(Policy(allow=parse_selectors(text))) == chosen


def test_nothing_set_is_everything_offered_as_it_is() -> None:
    assert parse_selectors(" , ") == ()
    assert offered(NODE, Policy()).inventory is NODE
    assert offered(NODE, Policy()).withheld == ()


def test_deny_wins_and_both_say_why() -> None:
    policy = Policy(allow=parse_selectors("index=0,index=1"), deny=parse_selectors("model=NVIDIA A100*"))
    done = offered(NODE, policy)
    assert [one.name for one in done.inventory.gpus] == [gpu(1).name]
    told = {problem.subject: problem.message for problem in done.withheld}
    assert told[gpu(0).name] == "setting denyDevices names it (model=NVIDIA A100*)"
    assert told[gpu(2).name] == told[gpu(3).name] == "setting allowDevices does not name it"


def test_an_index_counts_all_gpus_of_the_node_also_those_that_are_withheld() -> None:
    policy = Policy(allow=parse_selectors("index=3"), deny=parse_selectors("index=0"))
    assert kept(policy) == [3]


def test_gpus_with_a_monitor_and_gpus_in_use_are_withheld_only_where_that_is_set() -> None:
    usage = {gpu(1).address: Usage(display="DP-1"), gpu(2).address: Usage(holders=("Xorg (pid 8)", "game (pid 9)"))}
    assert kept(Policy(), usage) == [0, 1, 2, 3]
    done = offered(NODE, Policy(withhold_displays=True, withhold_held=True), usage)
    told = {problem.subject: problem.message for problem in done.withheld}
    assert "a monitor is connected to it (DP-1), and setting displayGpus" in told[gpu(1).name]
    assert "(Xorg (pid 8), game (pid 9)), and setting heldGpus" in told[gpu(2).name]
    assert kept(Policy(withhold_displays=True), usage) == [0, 2, 3]


def test_shares_are_set_by_the_first_selector_that_names_a_gpu() -> None:
    policy = Policy(shares=parse_shares('{"index=2": 1, "model=NVIDIA L4*": 4, "*": 10}'))
    assert [one.shares for one in offered(NODE, policy).inventory.gpus] == [10, 4, None, 10]
    again = offered(offered(NODE, policy).inventory, Policy()).inventory
    assert [one.shares for one in again.gpus] == [None] * 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("4", "JSON object"),
        ("{", "is no JSON"),
        ('{"index=1": 0}', "from 1 to 256"),
        ('{"index=1": 257}', "from 1 to 256"),
        ('{"index=1": true}', "from 1 to 256"),
        ('{"index=1": "4"}', "from 1 to 256"),
        ('{"L4": 4}', "names no GPUs"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_shares(text)
    assert parse_shares("") == ()


@given(st.text(max_size=40))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    try:
        made = Selector.parse(text)
    except ValueError as error:
        assert "names no GPUs" in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert made.matches(gpu(0), 0) in (True, False)


@given(
    st.lists(st.sampled_from(["*", "index=0", "index=1", "model=NVIDIA L*", "0000:30:00.0"]), max_size=3).map(",".join)
)
def test_every_gpu_is_either_offered_or_withheld_with_a_reason(text: str) -> None:
    done = offered(NODE, Policy(allow=parse_selectors(text), deny=parse_selectors("index=1")))
    names = [one.name for one in done.inventory.gpus] + [problem.subject for problem in done.withheld]
    assert sorted(names) == sorted(one.name for one in NODE.gpus)
    assert all(problem.message for problem in done.withheld)
