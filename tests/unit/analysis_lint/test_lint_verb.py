"""``gpudra lint``: where documents come from, what is printed, what the exit code says."""

from __future__ import annotations

import io
import json
import socket
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from driver.analysis.lint import RULES
from driver.cli import cluster, documents
from driver.cli.main import main
from driver.inventory import build_inventory
from driver.model import NodeInventory
from tests.support import dradocs as dra
from tests.support.nodes import address, host, nvml, nvml_gpu, pci_gpu

SICK = dra.resource_slice(dra.device("gpu-0", taints=[dra.taint()]))
SHARED = dra.resource_slice(dra.device("gpu-0", allowMultipleAllocations=True))
INCOMPLETE = dra.resource_slice(dra.device("gpu-0"), count=2)


def write(folder: Path, *bodies: Any, name: str = "slices.json") -> str:
    path = folder / name
    path.write_text(json.dumps(list(bodies)), encoding="utf-8")
    return str(path)


def test_a_finding_is_printed_with_its_reason_and_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", write(tmp_path, SICK)]) == 1

    printed = capsys.readouterr().out
    assert "warning A08 no-taints-on-samples" in printed
    assert "remedy: Cordon the node" in printed
    assert f"{tmp_path / 'slices.json'}, items[0]): spec.devices[0].taints" in printed


@pytest.mark.parametrize(
    ("body", "fail_on", "code"),
    [
        (SHARED, "warning", 0),
        (SHARED, "note", 1),
        (SICK, "warning", 1),
        (SICK, "error", 0),
        (INCOMPLETE, "error", 1),
        (INCOMPLETE, "never", 0),
    ],
)
def test_the_exit_code_depends_on_the_severity(body: Any, fail_on: str, code: int, tmp_path: Path) -> None:
    assert main(["lint", write(tmp_path, body), "--fail-on", fail_on]) == code


def test_a_document_that_cannot_be_read_makes_the_code_2_and_the_rest_is_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = dra.resource_slice(node="node-b")
    damaged["spec"]["devices"] = 7

    assert main(["lint", write(tmp_path, damaged, SICK), "-o", "json"]) == 2

    printed = json.loads(capsys.readouterr().out)
    assert [problem["path"] for problem in printed["problems"]] == ["spec.devices"]
    assert [finding["id"] for finding in printed["findings"]] == ["A08"]


@pytest.mark.parametrize(("flags", "shown"), [([], 20), (["--all"], 25)])
def test_many_findings_of_a_rule_are_shown_when_they_are_asked_for(
    flags: list[str], shown: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slices = [dra.resource_slice(dra.device("gpu-0", taints=[dra.taint()]), node=f"node-{n}") for n in range(25)]

    assert main(["lint", write(tmp_path, *slices), "--brief", *flags]) == 1

    assert capsys.readouterr().out.count("warning A08") == shown


def test_rules_can_be_selected_and_ignored(tmp_path: Path) -> None:
    file = write(tmp_path, SICK)

    assert main(["lint", file, "--ignore", "A08"]) == 0
    assert main(["lint", file, "--select", "A04,node-local"]) == 0
    assert main(["lint", file, "--select", "A0"]) == 1


def test_a_rule_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", write(tmp_path, SICK), "--select", "A77"]) == 2
    assert "there is no rule A77; there are A01" in capsys.readouterr().err


def test_the_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [rule.id for rule in RULES]


def test_what_the_api_server_would_refuse_is_told_with_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = [dra.request("gpus"), dra.request("gpus")]
    file = write(tmp_path, dra.claim("c", *twice), dra.claim_template("t", *twice))

    assert main(["lint", file, "-o", "json", "--select", "A26"]) == 1

    found = json.loads(capsys.readouterr().out)["findings"]
    assert [finding["path"] for finding in found] == ["spec.devices.requests[1]", "spec.spec.devices.requests[1]"]


def test_a_field_that_is_null_counts_as_absent(tmp_path: Path) -> None:
    tainted = dra.resource_slice(dra.device("gpu-0", taints=[{"key": "a/b", "value": None, "effect": "None"}]))
    tainted["spec"]["nodeSelector"] = None

    assert main(["lint", write(tmp_path, tainted), "--select", "A26", "--fail-on", "note"]) == 0


def test_nothing_to_look_at_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint"]) == 2
    assert "nothing to look at: name files, or --cluster, --node or --mock-profile" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "code"), [("1.36", 0), ("36", 2), ("1.x", 2)])
def test_the_release_is_written_as_kubernetes_does(given: str, code: int, tmp_path: Path) -> None:
    arguments = ["lint", write(tmp_path, SHARED), "--k8s", given]
    if code:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == code
    else:
        assert main(arguments) == code


def test_documents_come_from_standard_input_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"apiVersion": "v1", "kind": "List", "items": [SICK]})))

    assert main(["lint", "-"]) == 1
    assert "(stdin, items[0])" in capsys.readouterr().out


def test_the_sarif_form_is_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", write(tmp_path, SICK), "-o", "sarif"]) == 1
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0"
    assert [result["ruleId"] for result in log["runs"][0]["results"]] == ["A08"]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> NodeInventory:
    inventory = build_inventory(nvml(nvml_gpu(address(0))), host(pci_gpu(address(0))), mock=False)
    monkeypatch.setattr(documents, "read_node", lambda _args, **_flags: inventory)
    return inventory


@pytest.mark.usefixtures("node")
def test_what_the_agent_would_publish_is_looked_at_beside_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reading = dra.device_class("fast", "device.attributes['gpu.nvidia.com'].speed == 'fast'")

    assert main(["lint", "--node", "--node-name", "node-a"]) == 0
    assert main(["lint", "--node", "--node-name", "node-a", write(tmp_path, reading)]) == 1
    assert "no such key: speed" in capsys.readouterr().out


@pytest.mark.usefixtures("node")
def test_a_name_that_cannot_be_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--node", "--node-name", "Node_A"]) == 2
    assert "node name 'Node_A'" in capsys.readouterr().err


class FakeServer:
    """Serves lists by path; counts what was asked."""

    def __init__(self, lists: dict[str, list[Any]], *, page: int = 100, status: dict[str, int] | None = None) -> None:
        self.lists, self.page, self.status = lists, page, status or {}
        self.asked: list[str] = []

    def get(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        self.asked.append(path)
        if path in self.status:
            raise cluster.Refused(self.status[path], "no")
        if path not in self.lists:
            raise cluster.Refused(404, "the server could not find the requested resource")
        start = int(query.get("continue", "0"))
        items = [
            {key: value for key, value in body.items() if key not in ("kind", "apiVersion")}
            for body in self.lists[path][start : start + self.page]
        ]
        more = {"continue": str(start + self.page)} if start + self.page < len(self.lists[path]) else {}
        return {"items": items, "metadata": more}


DRA = "apis/resource.k8s.io/v1"
EMPTY: dict[str, list[Any]] = {
    f"{DRA}/{plural}": [] for plural in ("deviceclasses", "resourceclaims", "resourceclaimtemplates")
} | {"api/v1/nodes": [], "api/v1/pods": [], "apis/apps/v1/daemonsets": []}


class Answering(BaseHTTPRequestHandler):
    """An API server with these answers and no others."""

    def __init__(self, answers: dict[str, Any], *args: Any) -> None:
        self.answers = answers
        super().__init__(*args)

    def do_GET(self) -> None:
        body = self.answers.get(self.path.partition("?")[0])
        data = json.dumps(body or {"kind": "Status", "message": "not here"}).encode()
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args: Any) -> None:
        """Say nothing."""


def write_kubeconfig(folder: Path, url: str) -> str:
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


class TestCluster:
    def test_all_pages_of_all_kinds_are_read(self) -> None:
        slices = [dra.resource_slice(node=f"node-{n}") for n in range(5)]
        server = FakeServer({**EMPTY, f"{DRA}/resourceslices": slices, "api/v1/nodes": [dra.node("node-0")]}, page=2)

        found = cluster.read_cluster(server)

        assert found.problems == ()
        assert [document.body["spec"] for document in found.slices] == [body["spec"] for body in slices]
        assert [document.name for document in found.of("Node")] == ["node-0"]
        assert server.asked.count(f"{DRA}/resourceslices") == 3

    def test_an_older_server_is_asked_for_the_version_that_it_has(self) -> None:
        old = dra.resource_slice()
        old["spec"]["devices"] = [{"name": "gpu-0", "basic": {"attributes": {"type": {"string": "gpu"}}}}]
        server = FakeServer({**EMPTY, "apis/resource.k8s.io/v1beta1/resourceslices": [old]})

        (document,) = cluster.read_cluster(server).slices

        assert document.body["spec"]["devices"] == [{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}]
        assert document.body["apiVersion"] == "resource.k8s.io/v1"

    def test_what_may_not_be_listed_is_told_and_the_rest_is_read(self) -> None:
        lists = {**EMPTY, f"{DRA}/resourceslices": [dra.resource_slice()]}
        server = FakeServer(lists, status={"api/v1/pods": 403, f"{DRA}/deviceclasses": 403})

        found = cluster.read_cluster(server)

        assert len(found.slices) == 1
        assert [str(problem) for problem in found.problems] == [
            "deviceclasses: cannot be listed: no (status 403)",
            "pods: cannot be listed: no (status 403)",
        ]
        assert found.absent == {"DeviceClass", "Pod"}

    def test_kinds_that_a_cluster_need_not_have_are_not_missed(self) -> None:
        assert cluster.read_cluster(FakeServer({**EMPTY, f"{DRA}/resourceslices": []})).problems == ()

    def test_the_role_for_readers_permits_what_is_asked_for_and_nothing_else(self) -> None:
        yaml = pytest.importorskip("yaml")
        role = yaml.safe_load((Path(__file__).parents[3] / "deploy" / "reader.yaml").read_text(encoding="utf-8"))
        permitted = {(rule["apiGroups"][0], plural) for rule in role["rules"] for plural in rule["resources"]}

        def group(path: str) -> str:
            return "" if path.startswith("api/") else path.split("/")[1]

        assert permitted == {(group(path), kind.plural) for kind in cluster.KINDS for path in kind.groups}
        assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list"}

    def test_the_verb_reads_the_cluster_that_was_named(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        named: list[Any] = []

        def connect(*given: Any) -> FakeServer:
            named.append(given)
            return FakeServer({**EMPTY, f"{DRA}/resourceslices": [SICK]})

        monkeypatch.setattr(cluster, "connect", connect)

        assert main(["lint", "--kubeconfig", "/tmp/config", "--context", "prod"]) == 1
        assert named == [("/tmp/config", "prod")]
        assert "(cluster)" in capsys.readouterr().out

    @pytest.mark.parametrize("status", [0, 401])
    def test_a_server_that_answers_nobody_is_asked_once(self, status: int) -> None:
        server = FakeServer(EMPTY, status={f"{DRA}/resourceslices": status})

        found = cluster.read_cluster(server)

        assert len(server.asked) == len(found.problems) == 1
        assert "Pod" in found.absent

    def test_the_official_client_is_used_as_it_is(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("kubernetes")
        answers = {f"/{DRA}/resourceslices": {"items": [SICK]}} | {f"/{path}": {"items": []} for path in EMPTY}
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(Answering, answers)) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            kubeconfig = write_kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_port}")
            assert main(["lint", "--kubeconfig", kubeconfig, "--brief"]) == 1
            server.shutdown()

        assert "warning A08" in capsys.readouterr().out

    def test_a_server_that_is_not_there_is_told(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("kubernetes")
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            kubeconfig = write_kubeconfig(tmp_path, f"http://127.0.0.1:{unused.getsockname()[1]}")

            assert main(["lint", "--kubeconfig", kubeconfig]) == 2

        assert "unreadable: cluster: no answer" in capsys.readouterr().out

    def test_a_kubeconfig_that_is_not_there_is_told(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("kubernetes")

        assert main(["lint", "--kubeconfig", str(tmp_path / "none")]) == 2
        assert "name one with --kubeconfig and --context" in capsys.readouterr().err


def test_progress_is_silent_for_two_seconds_and_then_speaks_once_a_second() -> None:
    from driver.cli.progress import Progress

    now, stream = [0.0], io.StringIO()
    progress = Progress(stream, lambda: now[0])
    for second in (1.0, 1.9, 2.0, 2.5, 3.1):
        now[0] = second
        progress("reading", int(second * 10))

    assert stream.getvalue().splitlines() == ["... reading (20)", "... reading (31)"]
