"""Settings come from flags, environment, file and defaults, in this order, and refuse what cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driver import settings
from driver.settings import Settings, SettingsError, load


def test_defaults_are_those_of_a_node_with_a_kubelet_in_its_usual_place() -> None:
    loaded = load({"node_name": "node-a"}, environment={})
    assert loaded.driver_name == "gpu.nvidia.com"
    assert loaded.plugins_dir == "/var/lib/kubelet/plugins"
    assert str(loaded.state_dir) == "/var/lib/kubelet/plugins/gpu.nvidia.com/gpudra"
    assert str(loaded.dev_path) == "/dev"
    assert str(loaded.host_dev_path) == "/dev"


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"nodeName": "from-file", "metricsPort": 1, "healthPort": 2}))
    environment = {"GPUDRA_NODE_NAME": "from-environment", "GPUDRA_METRICS_PORT": "3"}
    loaded = load({"node_name": "from-flag"}, environment=environment, config=config)
    assert (loaded.node_name, loaded.metrics_port, loaded.health_port) == ("from-flag", 3, 2)


def test_a_flag_that_was_not_given_does_not_hide_the_environment() -> None:
    loaded = load({"node_name": None}, environment={"GPUDRA_NODE_NAME": "node-b"})
    assert loaded.node_name == "node-b"


def test_without_any_word_the_host_name_is_the_node_name() -> None:
    assert load({}, environment={}).node_name


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"metrics_port": "eighty"}, "--metrics-port: 'eighty' cannot be used"),
        ({"metrics_port": 70000}, "--metrics-port: 70000 cannot be used"),
        ({"rescan_seconds": 0}, "--rescan-seconds: 0 cannot be used"),
        ({"driver_name": "GPU.nvidia.com"}, "driverName 'GPU.nvidia.com' is no DNS subdomain"),
        ({"driver_name": "a" * 64}, "at most 63"),
        ({"node_name": "node_a"}, "nodeName 'node_a' is not the name of a Node object"),
        ({"node_name": ""}, "--node-name or GPUDRA_NODE_NAME"),
        ({"nvml_backend": "ctypes"}, "nvmlBackend 'ctypes' is none of auto, cffi, pynvml"),
        ({"log_level": "loud"}, "logLevel 'loud' is none of"),
        ({"cdi_dir": "var/run/cdi"}, "cdiDir 'var/run/cdi' is not an absolute path"),
    ],
)
def test_a_bad_value_is_refused_by_name(flags: dict[str, object], complaint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({"node_name": "node-a", **flags}, environment={})
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"nodeNam": "a"}', "unknown setting 'nodeNam' (known: allowDevices, "),
        ("[1]", "must hold a JSON object, not list"),
        ("{", "is not JSON"),
    ],
)
def test_a_bad_file_is_refused_by_its_name(tmp_path: Path, content: str, complaint: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(content)
    with pytest.raises(SettingsError) as caught:
        load({}, environment={}, config=config)
    assert complaint in str(caught.value)
    assert str(config) in str(caught.value)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        load({}, environment={}, config=tmp_path / "absent.json")


def test_a_driver_root_elsewhere_moves_the_device_nodes_with_it() -> None:
    loaded = load(
        {"node_name": "n", "driver_root": "/driver-root", "host_driver_root": "/run/nvidia/driver"}, environment={}
    )
    assert str(loaded.dev_path) == "/driver-root/dev"
    assert str(loaded.host_dev_path) == "/run/nvidia/driver/dev"


def test_device_nodes_may_lie_outside_the_driver_root() -> None:
    loaded = load({"node_name": "n", "driver_root": "/driver-root", "dev_root": "/dev"}, environment={})
    assert str(loaded.dev_path) == str(loaded.host_dev_path) == "/dev"


def test_every_field_has_a_flag_and_a_variable_of_its_own() -> None:
    assert {settings.flag(name) for name in settings.FIELDS} >= {"--node-name", "--cdi-dir", "--rescan-seconds"}
    assert len({f.encode_name for f in settings.FIELDS.values()}) == len(settings.FIELDS)


def test_settings_are_frozen() -> None:
    loaded = load({"node_name": "n"}, environment={})
    with pytest.raises(AttributeError):
        loaded.node_name = "m"  # type: ignore[misc]
    assert isinstance(loaded, Settings)
