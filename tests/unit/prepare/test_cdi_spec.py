"""CDI specs: the lowest version that fits, and nothing that any runtime would refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.prepare.cdi import (
    CdiDevice,
    CdiDeviceNode,
    CdiError,
    CdiHook,
    CdiMount,
    CdiSpec,
    ContainerEdits,
    check_vendor,
)
from driver.prepare.specfolder import device_name, encode

DATA = Path(__file__).parent / "data"
NODE = ContainerEdits(device_nodes=(CdiDeviceNode("/dev/nvidia0"),))
PLAIN = CdiSpec("gpu.nvidia.com/claim", (CdiDevice("a", NODE),))


def with_device(edits: ContainerEdits, name: str = "a") -> CdiSpec:
    return msgspec.structs.replace(PLAIN, devices=(CdiDevice(name, edits),))


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        (PLAIN, "0.3.0"),
        (with_device(NODE, "7a"), "0.5.0"),
        (
            with_device(ContainerEdits(device_nodes=(CdiDeviceNode("/dev/nvidia0", "/run/nvidia/dev/nvidia0"),))),
            "0.5.0",
        ),
        (with_device(ContainerEdits(mounts=(CdiMount("/a", "/a"),))), "0.3.0"),
        (with_device(ContainerEdits(mounts=(CdiMount("tmpfs", "/a", type="tmpfs"),))), "0.4.0"),
        (msgspec.structs.replace(PLAIN, edits=ContainerEdits(mounts=(CdiMount("/a", "/a", type="bind"),))), "0.4.0"),
        (msgspec.structs.replace(PLAIN, edits=ContainerEdits(additional_gids=(44,))), "0.7.0"),
    ],
)
def test_the_version_is_the_lowest_that_has_what_the_spec_uses(spec: CdiSpec, version: str) -> None:
    assert spec.version == version
    assert spec.to_json()["cdiVersion"] == version


FULL = CdiSpec(
    "gpu.nvidia.com/claim",
    (CdiDevice("a", NODE), CdiDevice("b", ContainerEdits(env=("A=1",)))),
    ContainerEdits(
        env=("NVIDIA_VISIBLE_DEVICES=void",),
        device_nodes=(CdiDeviceNode("/dev/nvidiactl", "/x/dev/nvidiactl", "rw"),),
        mounts=(CdiMount("/usr/lib/a.so", "/usr/lib/a.so", ("ro", "rbind")),),
        hooks=(CdiHook("createContainer", "/usr/bin/nvidia-cdi-hook", ("nvidia-cdi-hook", "chmod"), ("A=b",), 5),),
        additional_gids=(44,),
    ),
)


def test_a_full_spec_satisfies_the_published_schema() -> None:
    """The schema's rules that can be broken by what we write; the rest of it is stricter in ``CdiSpec.check``."""
    jsonschema = pytest.importorskip("jsonschema")
    referencing = pytest.importorskip("referencing")
    main, definitions = (json.loads((DATA / f"cdi-{name}.json").read_text()) for name in ("schema", "defs"))
    resource = referencing.Resource.from_contents(definitions | {"$schema": main["$schema"]})
    registry = referencing.Registry().with_resource("cdi-defs.json", resource)
    document = json.loads(encode(FULL))
    validator = jsonschema.Draft7Validator(main, registry=registry)
    validator.validate(document)
    assert document == FULL.to_json()
    document["devices"][0]["containerEdits"]["deviceNodes"][0].pop("path")
    assert not validator.is_valid(document)


def test_only_keys_that_strict_readers_know_are_written() -> None:
    document = FULL.to_json()
    assert set(document) == {"cdiVersion", "kind", "devices", "containerEdits"}
    assert document["containerEdits"] == {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": "/x/dev/nvidiactl", "permissions": "rw"}],
        "mounts": [{"hostPath": "/usr/lib/a.so", "containerPath": "/usr/lib/a.so", "options": ["ro", "rbind"]}],
        "hooks": [
            {
                "hookName": "createContainer",
                "path": "/usr/bin/nvidia-cdi-hook",
                "args": ["nvidia-cdi-hook", "chmod"],
                "env": ["A=b"],
                "timeout": 5,
            }
        ],
        "additionalGids": [44],
    }


@pytest.mark.bug("B76")
def test_no_device_number_is_ever_written() -> None:
    text = encode(FULL).decode()
    assert "major" not in text
    assert "minor" not in text


@pytest.mark.bug("B78")
@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (msgspec.structs.replace(PLAIN, devices=()), "no device"),
        (with_device(ContainerEdits()), "no edits"),
        (msgspec.structs.replace(PLAIN, devices=PLAIN.devices * 2), "twice"),
        (msgspec.structs.replace(PLAIN, kind="1gpu.nvidia.com/claim"), "vendor"),
        (msgspec.structs.replace(PLAIN, kind="gpu.nvidia.com"), "class"),
        (msgspec.structs.replace(PLAIN, kind="gpu.nvidia.com/a.b"), "class"),
        (with_device(NODE, "a/b"), "device name"),
        (with_device(NODE, "a="), "device name"),
        (with_device(NODE, "-a"), "device name"),
        (with_device(ContainerEdits(device_nodes=(CdiDeviceNode("dev/nvidia0"),))), "plain path"),
        (with_device(ContainerEdits(device_nodes=(CdiDeviceNode("/dev/../etc/x"),))), "plain path"),
        (with_device(ContainerEdits(device_nodes=(CdiDeviceNode("/dev/x", permissions="rx"),))), "permissions"),
        (with_device(ContainerEdits(mounts=(CdiMount("/a\n", "/a"),))), "plain path"),
        (with_device(ContainerEdits(mounts=(CdiMount("relative", "/a"),))), "plain path"),
        (with_device(ContainerEdits(hooks=(CdiHook("afterLunch", "/bin/x"),))), "hook"),
        (with_device(ContainerEdits(mounts=(CdiMount("/a", "/c"), CdiMount("/b", "/c")))), "mount point /c"),
        (with_device(ContainerEdits(device_nodes=NODE.device_nodes * 2)), "device node /dev/nvidia0"),
        (with_device(ContainerEdits(env=("A=1", "A=2"))), "variable A"),
    ],
)
def test_an_illegal_spec_is_refused(spec: CdiSpec, problem: str) -> None:
    with pytest.raises(CdiError, match=problem):
        encode(spec)


@pytest.mark.bug("B131")
@pytest.mark.parametrize("item", ["NAME", "=x", "A=1\nB=2", "A=\x00", "1A=2", "A B=1"])
def test_a_variable_that_could_smuggle_another_is_refused(item: str) -> None:
    with pytest.raises(CdiError, match="environment variable"):
        encode(with_device(ContainerEdits(env=(item,))))


def test_merged_edits_keep_the_first_word_about_each_thing() -> None:
    ours = ContainerEdits(env=("A=ours",), device_nodes=(CdiDeviceNode("/dev/a"),), mounts=(CdiMount("/1", "/m"),))
    theirs = ContainerEdits(
        env=("A=theirs", "B=1", "B=2"),
        device_nodes=(CdiDeviceNode("/dev/a", "/x"), CdiDeviceNode("/dev/b")),
        mounts=(CdiMount("/2", "/m"), CdiMount("/3", "/n")),
        hooks=(CdiHook("poststop", "/bin/x"),) * 2,
        additional_gids=(1, 1),
    )
    merged = ours.merged(theirs)
    assert merged.env == ("A=ours", "B=1")
    assert merged.device_nodes == (CdiDeviceNode("/dev/a"), CdiDeviceNode("/dev/b"))
    assert merged.mounts == (CdiMount("/1", "/m"), CdiMount("/3", "/n"))
    assert merged.hooks == (CdiHook("poststop", "/bin/x"),)
    assert merged.additional_gids == (1,)
    encode(with_device(merged))


@pytest.mark.parametrize("vendor", ["", "1gpu.nvidia.com", "gpu.nvidia.com-", "gpu nvidia", "gpu/nvidia"])
def test_a_driver_name_that_is_no_vendor_is_refused(vendor: str) -> None:
    with pytest.raises(CdiError, match="CDI vendor"):
        check_vendor(vendor)


LABEL = st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
RESULT = st.tuples(
    st.from_regex(r"\A[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z"),
    st.one_of(LABEL, st.tuples(LABEL, LABEL).map("/".join)),
    LABEL,
    st.none() | st.uuids().map(str),
)


@pytest.mark.bug("B84")
@given(RESULT, RESULT)
def test_device_names_are_legal_short_and_different_for_different_results(one: Any, other: Any) -> None:
    names = {device_name(*one), device_name(*other)}
    assert len(names) == len({one, other})
    for name in names:
        assert len(name) <= 128
        encode(with_device(NODE, name))


@pytest.mark.bug("B84")
def test_device_names_do_not_collide_where_parts_could_run_together() -> None:
    share = "3f0e6a0e-0f3a-4b6d-9a6e-0d6f1f0c2a11"
    names = [
        device_name("u", "a", "b", None),
        device_name("u", "a", "b", share),
        device_name("u", "a/b", "b", None),
        device_name("u", "a-b", "b", None),
        device_name("u", "a", "b-b", None),
        device_name("u", "r" * 63 + "/" + "s" * 63, "d" * 63, share),
        device_name("u", "r" * 63 + "/" + "s" * 63, "d" * 63, None),
    ]
    assert len(set(names)) == len(names)
