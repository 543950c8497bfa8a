"""Which devices a claim gets: order, constraints, counters, capacity, taints, shares, alternatives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driver.analysis.allocator import default_features, scheduler_features
from tests.unit.analysis_allocator.cluster_documents import (
    allocate,
    claim,
    consumes,
    counters,
    device,
    first_of,
    held,
    names,
    request,
    slice_of,
)

FOUR = [device(f"gpu-{number}") for number in range(4)]
NUMA = "resource.kubernetes.io/numaNode"


def on_numa(name: str, node: int) -> dict[str, object]:
    return device(name, attributes={NUMA: {"int": node}})


def test_devices_are_taken_in_the_order_of_the_slice() -> None:
    assert names(allocate([slice_of(*reversed(FOUR))], claim(request(count=2)))) == ["gpu-3", "gpu-2"]


def test_slices_are_taken_in_the_order_of_their_names() -> None:
    late = slice_of(device("late"), name="b", count=2)
    early = slice_of(device("early"), name="a", count=2)
    assert names(allocate([late, early], claim(request()))) == ["early"]


def test_pools_with_binding_conditions_come_last() -> None:
    bound = slice_of(device("bound", bindingConditions=["ready"]), pool="a")
    plain = slice_of(device("plain"), pool="b")
    assert names(allocate([bound, plain], claim(request(count=2)))) == ["plain", "bound"]


def test_what_others_hold_is_not_given_again() -> None:
    assert names(allocate([slice_of(*FOUR)], claim(request()), before=[held("gpu-0", "gpu-2")])) == ["gpu-1"]


def test_admin_access_takes_what_others_hold_and_holds_nothing() -> None:
    one = slice_of(device("gpu-0"))
    outcome = allocate([one], claim(request(adminAccess=True)), before=[held("gpu-0")])
    assert names(outcome) == ["gpu-0"]
    assert outcome.allocations is not None
    assert outcome.allocations[0]["devices"]["results"][0]["adminAccess"] is True
    assert names(allocate([one], claim(request()), before=[held("gpu-0", adminAccess=True)])) == ["gpu-0"]


def test_matching_devices_are_found_by_going_back() -> None:
    devices = [on_numa("a0", 0), on_numa("b0", 1), on_numa("b1", 1)]
    found = allocate([slice_of(*devices)], claim(request(count=2), constraints=[{"matchAttribute": NUMA}]))
    assert names(found) == ["b0", "b1"]


def test_a_device_without_the_attribute_matches_nothing() -> None:
    found = allocate([slice_of(device("plain"))], claim(request(), constraints=[{"matchAttribute": NUMA}]))
    assert not found.fits
    assert found.kind == ""


def test_distinct_devices_differ_in_the_attribute() -> None:
    devices = [on_numa("a0", 0), on_numa("a1", 0), on_numa("b0", 1)]
    found = allocate([slice_of(*devices)], claim(request(count=2), constraints=[{"distinctAttribute": NUMA}]))
    assert names(found) == ["a0", "b0"]


def test_before_1_37_distinct_compares_only_with_the_last_device_of_a_request() -> None:
    devices = [on_numa("a0", 0), on_numa("b0", 1), on_numa("a1", 0)]
    wish = claim(request(count=3), constraints=[{"distinctAttribute": NUMA}])
    assert names(allocate([slice_of(*devices)], wish, release=36)) == ["a0", "b0", "a1"]
    assert not allocate([slice_of(*devices)], wish, release=37).fits


def test_a_constraint_binds_only_the_requests_it_names() -> None:
    devices = [on_numa("a0", 0), on_numa("b0", 1), on_numa("b1", 1)]
    wish = claim(request("x"), request("y", 2), constraints=[{"matchAttribute": NUMA, "requests": ["y"]}])
    assert names(allocate([slice_of(*devices)], wish)) == ["a0", "b0", "b1"]


def test_the_first_alternative_that_fits_is_taken() -> None:
    wish = claim(first_of("r", request("many", 8), request("two", 2), request("one", 1)))
    outcome = allocate([slice_of(*FOUR)], wish)
    assert names(outcome) == ["gpu-0", "gpu-1"]
    assert outcome.allocations is not None
    assert {each["request"] for each in outcome.allocations[0]["devices"]["results"]} == {"r/two"}


def test_all_takes_every_device_that_is_selected() -> None:
    assert names(allocate([slice_of(*FOUR)], claim(request(allocationMode="All")))) == [each["name"] for each in FOUR]


def test_all_fails_where_one_of_them_is_taken() -> None:
    outcome = allocate([slice_of(*FOUR)], claim(request(allocationMode="All")), before=[held("gpu-3")])
    assert (outcome.fits, outcome.kind) == (False, "")


def test_all_of_nothing_is_nothing() -> None:
    assert not allocate([], claim(request(allocationMode="All"))).fits


@pytest.mark.parametrize(("state", "text"), [("count", "being updated"), ("twice", "invalid")])
def test_all_ends_the_attempt_for_every_node_beside_a_pool_that_is_not_whole(state: str, text: str) -> None:
    broken = slice_of(device("x"), device("x")) if state == "twice" else slice_of(device("x"), count=2)
    outcome = allocate([broken], claim(request(allocationMode="All")))
    assert outcome.kind == "fatal"
    assert text in outcome.error


def test_a_pool_that_is_not_whole_gives_no_devices() -> None:
    outcome = allocate([slice_of(device("x"), count=2)], claim(request()))
    assert (outcome.fits, outcome.kind) == (False, "")
    assert outcome.pools[0].state == "incomplete"
    assert names(allocate([slice_of(device("x"), count=2)], claim(request()), release=34)) == ["x"]


def test_an_invalid_pool_is_an_error_of_this_node_alone() -> None:
    outcome = allocate([slice_of(device("x"), device("x"))], claim(request()))
    assert outcome.kind == "node"
    assert outcome.pools[0].why == "duplicate device name x"


def test_a_valid_pool_serves_beside_an_invalid_one() -> None:
    broken = slice_of(device("x"), device("x"), pool="a")
    assert names(allocate([broken, slice_of(device("y"), pool="b")], claim(request()))) == ["y"]


def test_only_the_newest_generation_counts() -> None:
    old = slice_of(device("old"), name="old")
    new = slice_of(device("new"), name="new", generation=2)
    assert names(allocate([old, new], claim(request()))) == ["new"]


def test_partitions_share_the_counters_of_their_pool() -> None:
    parts = [device(f"part-{number}", consumesCounters=consumes("gpu-0", sms="2")) for number in range(3)]
    pool = [slice_of(*parts, count=2), counters(gpu_0={"sms": "4"})]
    assert names(allocate(pool, claim(request(count=2)))) == ["part-0", "part-1"]
    assert not allocate(pool, claim(request(count=3))).fits
    assert names(allocate(pool, claim(request()), before=[held("part-0")])) == ["part-1"]
    assert not allocate(pool, claim(request(count=2)), before=[held("part-0")]).fits


def test_a_pool_whose_counters_are_overdrawn_gives_no_more_partitions() -> None:
    parts = [
        device("big", consumesCounters=consumes("gpu-0", sms="5")),
        device("small", consumesCounters=consumes("gpu-0", sms="0")),
    ]
    pool = [slice_of(*parts, count=2), counters(gpu_0={"sms": "4"})]
    assert not allocate(pool, claim(request()), before=[held("big")]).fits


def test_a_counter_nobody_declared_makes_the_pool_invalid() -> None:
    pool = [slice_of(device("x", consumesCounters=consumes("nope", sms="1")), count=2), counters(gpu_0={"sms": "4"})]
    assert allocate(pool, claim(request())).pools[0].why == "counter set nope not found"


def test_in_1_36_unfinished_counters_of_another_node_stop_all_here_too() -> None:
    foreign = counters(count=2, set={"units": "1"})
    foreign["spec"] |= {"nodeName": "node-b", "pool": foreign["spec"]["pool"] | {"name": "node-b"}}
    slices = [slice_of(device("x")), foreign]
    assert "being updated" in allocate(slices, claim(request(allocationMode="All")), release=36).error
    assert names(allocate(slices, claim(request(allocationMode="All")), release=37)) == ["x"]
    assert names(allocate(slices, claim(request()), release=36)) == ["x"]


def two_drivers_one_pool_name() -> list[dict[str, object]]:
    found = []
    for driver in ("a.example.com", "b.example.com"):
        part = slice_of(
            device("part", consumesCounters=consumes("set", units="1")), name=f"{driver}-x", pool="node-a", count=2
        )
        sets = counters(name=f"{driver}-y", set={"units": "1"})
        for each in (part, sets):
            each["spec"]["driver"] = driver
            found.append(each)
    return found


@pytest.mark.bug("kubernetes#140434")
def test_1_36_mixes_the_counters_of_two_drivers_whose_pools_share_a_name() -> None:
    wish = claim(request(count=2))
    assert not allocate(two_drivers_one_pool_name(), wish, release=36).fits
    assert names(allocate(two_drivers_one_pool_name(), wish, release=37)) == ["part", "part"]


def shareable(
    name: str, value: str = "10", policy: dict[str, object] | None = None, **more: object
) -> dict[str, object]:
    whole = {"value": value} | ({"requestPolicy": policy} if policy else {})
    return device(name, allowMultipleAllocations=True, capacity={"memory": whole}, **more)


def wants(amount: str) -> dict[str, object]:
    return {"capacity": {"requests": {"memory": amount}}}


def test_shares_of_a_device_add_up_to_its_capacity() -> None:
    one = slice_of(shareable("gpu"))
    outcome = allocate([one], claim(request("x", **wants("6")), request("y", **wants("4"))))
    assert names(outcome) == ["gpu", "gpu"]
    assert not allocate([one], claim(request("x", **wants("6")), request("y", **wants("5")))).fits


def test_each_share_has_an_id_and_says_what_it_takes() -> None:
    outcome = allocate([slice_of(shareable("gpu"))], claim(request(**wants("6"))), share=lambda: "share-1")
    assert outcome.allocations is not None
    result = outcome.allocations[0]["devices"]["results"][0]
    assert (result["shareID"], result["consumedCapacity"]) == ("share-1", {"memory": "6"})


def test_what_shares_of_others_take_is_counted() -> None:
    before = [held("gpu", shareID="s", consumedCapacity={"memory": "6"})]
    assert names(allocate([slice_of(shareable("gpu"))], claim(request(**wants("4"))), before=before)) == ["gpu"]
    assert not allocate([slice_of(shareable("gpu"))], claim(request(**wants("5"))), before=before).fits


@pytest.mark.parametrize(
    ("policy", "asked", "taken"),
    [
        (None, None, "10"),
        ({"default": "2"}, None, "2"),
        ({"default": "2", "validValues": ["2", "5"]}, "3", "5"),
        ({"default": "2", "validRange": {"min": "2", "step": "2"}}, "1", "2"),
        ({"default": "2", "validRange": {"min": "2", "step": "2"}}, "3", "4"),
    ],
)
def test_a_request_is_rounded_up_by_the_policy(policy: dict[str, object] | None, asked: str | None, taken: str) -> None:
    wish = request(**wants(asked)) if asked else request()
    outcome = allocate([slice_of(shareable("gpu", policy=policy))], claim(wish))
    assert outcome.allocations is not None
    assert outcome.allocations[0]["devices"]["results"][0]["consumedCapacity"] == {"memory": taken}


def test_fractions_are_rounded_as_fractions_only_with_their_gate() -> None:
    policy = {"default": "1", "validRange": {"min": "250m", "step": "250m"}}
    for gate, taken in ((True, "500m"), (False, "1")):
        features = scheduler_features(37, {"DRAFractionalCapacityRange": gate})
        outcome = allocate(
            [slice_of(shareable("gpu", policy=policy))], claim(request(**wants("300m"))), features=features
        )
        assert outcome.allocations is not None
        assert outcome.allocations[0]["devices"]["results"][0]["consumedCapacity"] == {"memory": taken}


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        ({"default": "2", "validValues": ["2", "5"]}, "6"),
        ({"default": "2", "validRange": {"min": "1", "max": "4"}}, "5"),
        (None, "11"),
    ],
)
def test_a_request_beyond_the_policy_gets_no_device(policy: dict[str, object] | None, asked: str) -> None:
    assert not allocate([slice_of(shareable("gpu", policy=policy))], claim(request(**wants(asked)))).fits


def test_a_request_that_int64_cannot_hold_ends_the_attempt() -> None:
    policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    outcome = allocate([slice_of(shareable("gpu", policy=policy))], claim(request(**wants("9223372036854775808"))))
    assert outcome.kind == "fatal"
    assert "cannot be represented" in outcome.error


def test_a_capacity_the_device_lacks_is_no_error() -> None:
    outcome = allocate([slice_of(device("plain"))], claim(request(**wants("1"))))
    assert (outcome.fits, outcome.kind) == (False, "")


def test_counters_of_a_shared_device_are_charged_once() -> None:
    part = shareable("part", consumesCounters=consumes("gpu-0", sms="4"))
    pool = [slice_of(part, count=2), counters(gpu_0={"sms": "4"})]
    assert names(allocate(pool, claim(request("x", **wants("1")), request("y", **wants("1"))))) == ["part", "part"]


TAINT = {"key": "bad", "value": "x", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        (None, False),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "key": "bad"}, True),
        ({"operator": "Exists", "key": "worse"}, False),
        ({"operator": "Equal", "key": "bad", "value": "x"}, True),
        ({"key": "bad", "value": "x"}, True),
        ({"operator": "Equal", "key": "bad", "value": "y"}, False),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Sometimes", "key": "bad"}, False),
    ],
)
def test_a_taint_keeps_away_who_does_not_tolerate_it(toleration: dict[str, str] | None, fits: bool) -> None:
    wish = request(tolerations=[toleration]) if toleration else request()
    assert allocate([slice_of(device("x", taints=[TAINT]))], claim(wish)).fits is fits


@pytest.mark.parametrize(
    ("effect", "fits"), [("NoSchedule", False), ("NoExecute", False), ("None", True), ("New", True)]
)
def test_only_known_effects_keep_away(effect: str, fits: bool) -> None:
    assert allocate([slice_of(device("x", taints=[TAINT | {"effect": effect}]))], claim(request())).fits is fits


def rule(**selector: str) -> dict[str, object]:
    return {"metadata": {"name": "rule"}, "spec": {"deviceSelector": selector, "taint": TAINT}}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([rule(device="gpu-0")], ["gpu-1"]),
        ([rule(device="gpu-0"), rule(device="gpu-1")], ["gpu-2"]),
        ([rule(pool="elsewhere")], ["gpu-0"]),
        ([rule(driver="other.example.com")], ["gpu-0"]),
        ([{"metadata": {"name": "bare"}, "spec": {"taint": TAINT}}], ["gpu-0"]),
    ],
)
def test_taint_rules_count_as_taints_of_the_slice(rules: list[dict[str, object]], expected: list[str]) -> None:
    assert names(allocate([slice_of(*FOUR)], claim(request()), taint_rules=rules)) == expected


def test_a_rule_that_selects_everything_leaves_nothing() -> None:
    assert not allocate([slice_of(*FOUR)], claim(request()), taint_rules=[rule()]).fits


def test_rules_count_only_with_their_gate() -> None:
    for release, gates, expected in (
        (36, {}, "gpu-0"),
        (36, {"DRADeviceTaintRules": True}, "gpu-1"),
        (37, {}, "gpu-1"),
    ):
        features = scheduler_features(release, gates)
        wish = claim(request())
        found = allocate(
            [slice_of(*FOUR)], wish, release=release, features=features, taint_rules=[rule(device="gpu-0")]
        )
        assert names(found) == [expected]


def test_a_taint_counts_only_with_its_gate() -> None:
    off = replace(default_features(37), device_taints=False)
    assert allocate([slice_of(device("x", taints=[TAINT]))], claim(request()), features=off).fits


def test_two_claims_of_a_pod_get_devices_of_their_own() -> None:
    outcome = allocate([slice_of(*FOUR)], claim(request(count=2), name="a"), claim(request(count=2), name="b"))
    assert (names(outcome, 0), names(outcome, 1)) == (["gpu-0", "gpu-1"], ["gpu-2", "gpu-3"])


def test_lists_match_in_a_value_that_all_have_in_common() -> None:
    linked = [device(name, attributes={"links": {"strings": links}}) for name, links in
              (("a", ["x", "y"]), ("b", ["x"]), ("c", ["y", "z"]), ("d", ["y"]))]  # fmt: skip
    wish = claim(request(count=3), constraints=[{"matchAttribute": "gpu.example.com/links"}])
    on = replace(default_features(37), list_type_attributes=True)
    assert names(allocate([slice_of(*linked)], wish, features=on)) == ["a", "c", "d"]
    assert not allocate([slice_of(*linked)], wish).fits


@pytest.mark.bug("kubernetes#140326")
def test_1_36_does_not_find_what_only_going_back_over_lists_would_find() -> None:
    linked = [device(name, attributes={"links": {"strings": links}}) for name, links in
              (("a", ["x", "y"]), ("b", ["x"]), ("c", ["y"]), ("d", ["y"]))]  # fmt: skip
    wish = claim(request(count=3), constraints=[{"matchAttribute": "gpu.example.com/links"}])
    for release, fits in ((36, False), (37, True)):
        on = replace(default_features(release), list_type_attributes=True)
        assert allocate([slice_of(*linked)], wish, release=release, features=on).fits is fits


def test_in_1_36_the_gate_of_lists_reaches_selectors_and_not_constraints() -> None:
    linked = [device(name, attributes={"links": {"strings": ["x"]}}) for name in "ab"]
    features = scheduler_features(36, {"DRAListTypeAttributes": True})
    chosen = [{"cel": {"expression": 'device.attributes["gpu.example.com"].links.exists(x, x == "x")'}}]
    assert names(allocate([slice_of(*linked)], claim(request(selectors=chosen)), release=36, features=features)) == [
        "a"
    ]
    same = [{"matchAttribute": "gpu.example.com/links"}]
    two = claim(request(count=2), constraints=same)
    assert not allocate([slice_of(*linked)], two, release=36, features=features).fits


def test_derived_attributes_take_part_in_constraints() -> None:
    on = replace(default_features(37), derived_attributes=True)
    devices = [device(f"gpu-{number}", attributes={"index": {"int": number}}) for number in range(4)]
    parity = {"name": "x.example.com/parity", "expression": 'device.attributes["gpu.example.com"].index % 2'}
    wish = claim(request(count=2, derivedAttributes=[parity]), constraints=[{"matchAttribute": "x.example.com/parity"}])
    assert names(allocate([slice_of(*devices)], wish, features=on)) == ["gpu-0", "gpu-2"]
    assert "derived attributes" in allocate([slice_of(*devices)], wish).error


def test_compatibility_groups_keep_kinds_of_partitions_apart() -> None:
    on = replace(default_features(37), compatibility_groups=True)
    parts = []
    for name, groups in (("mig", ["mig"]), ("vgpu", ["vgpu"]), ("both", ["mig", "vgpu"]), ("none", [])):
        parts.append(
            device(
                name,
                consumesCounters=[consumes("gpu-0", sms="1")[0] | ({"compatibilityGroups": groups} if groups else {})],
            )
        )
    pool = [slice_of(*parts, count=2), counters(gpu_0={"sms": "9"})]
    assert names(allocate(pool, claim(request(count=2)), features=on)) == ["mig", "both"]
    assert not allocate(pool, claim(request(count=3)), features=on).fits
    assert allocate(pool, claim(request())).pools[0].state == "incomplete"
