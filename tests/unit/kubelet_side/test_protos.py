"""The generated code is what hack/protos.py makes, and means on the wire what upstream's does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kubeletplugin.proto import dra_v1_pb2, dra_v1beta1_pb2, probe_pb2, registration_v1_pb2

ROOT = Path(__file__).parents[3]
GENERATED = Path("kubeletplugin/proto")


def test_committed_code_is_fresh(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools (dependency group build) makes the code to compare with")
    subprocess.run([sys.executable, ROOT / "hack/protos.py", "--out", tmp_path], check=True, stdout=subprocess.DEVNULL)
    made = {path.name: path.read_text() for path in (tmp_path / GENERATED).iterdir()}
    committed = {path.name: path.read_text() for path in (ROOT / GENERATED).glob("*_pb2*.py*")}
    assert made.keys() == committed.keys()
    stale = [name for name, text in made.items() if committed[name] != text]
    assert not stale, "run hack/protos.py"


def test_services_have_upstreams_names() -> None:
    names = [
        service.full_name
        for module in (registration_v1_pb2, dra_v1_pb2, dra_v1beta1_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
    ]
    assert names == [
        "pluginregistration.Registration",
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
    ]


def test_files_have_paths_of_their_own() -> None:
    paths = {module.DESCRIPTOR.name for module in (registration_v1_pb2, dra_v1_pb2, dra_v1beta1_pb2, probe_pb2)}
    assert len(paths) == 4
    assert all(path.startswith("kubeletplugin/proto/") for path in paths)


def test_messages_are_upstreams_bytes() -> None:
    claim = dra_v1_pb2.Claim(namespace="n", uid="u", name="c")
    assert claim.SerializeToString() == b"\x0a\x01n\x12\x01u\x1a\x01c"
    device = dra_v1_pb2.Device(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s")
    assert device.SerializeToString() == b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s"
    info = registration_v1_pb2.PluginInfo(type="t", name="n", endpoint="e", supported_versions=["v"])
    assert info.SerializeToString() == b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01v"
    status = registration_v1_pb2.RegistrationStatus(plugin_registered=True, error="x")
    assert status.SerializeToString() == b"\x08\x01\x12\x01x"


def test_v1beta1_has_no_share() -> None:
    assert "share_id" in dra_v1_pb2.Device.DESCRIPTOR.fields_by_name
    assert "share_id" not in dra_v1beta1_pb2.Device.DESCRIPTOR.fields_by_name
