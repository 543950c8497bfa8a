"""How ``--cluster`` finds its API server, and what it makes of answers that are none."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from driver.cli import cluster
from driver.cli.main import UsageError, main
from tests.support import dradocs as dra

JSON = dict[str, Any]
DRA = "/apis/resource.k8s.io/v1"
pytest.importorskip("kubernetes")


class Handler(BaseHTTPRequestHandler):
    """Gives what stands in ``answers`` for a path: (status, text); 404 for all others. Remembers what was asked."""

    answers: ClassVar[dict[str, tuple[int, str]]] = {}
    asked: ClassVar[list[tuple[str, str, str]]] = []

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.asked.append((self.command, path, query))
        status, text = self.answers.get(path, (404, json.dumps({"kind": "Status", "message": "not here"})))
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args: Any) -> None:
        """Say nothing."""


@contextmanager
def serving(answers: dict[str, tuple[int, str]]) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """A server, its address, and what it is asked."""
    handler: Any = type("Own", (Handler,), {"answers": answers, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler.asked
        finally:
            server.shutdown()
            thread.join()


def kubeconfig(folder: Path, **servers: str) -> str:
    """A kubeconfig with a context for each server; the first is the current one."""
    names = list(servers)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url}} for name, url in servers.items()],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "u"}} for name in names],
        "current-context": names[0],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def listed(*bodies: JSON, **metadata: str) -> tuple[int, str]:
    return 200, json.dumps({"items": list(bodies), "metadata": metadata})


EMPTY = {
    **{f"{DRA}/{name}": listed() for name in ("resourceslices", "deviceclasses", "resourceclaims")},
    f"{DRA}/resourceclaimtemplates": listed(),
    "/api/v1/nodes": listed(),
    "/api/v1/pods": listed(),
    "/apis/apps/v1/daemonsets": listed(),
}
SICK = dra.resource_slice(dra.device("gpu-0", taints=[dra.taint()]))


def test_the_context_that_was_named_is_asked_and_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        serving(EMPTY) as (healthy, asked_healthy),
        serving({**EMPTY, f"{DRA}/resourceslices": listed(SICK)}) as (
            sick,
            asked_sick,
        ),
    ):
        file = kubeconfig(tmp_path, healthy=healthy, sick=sick)

        assert main(["lint", "--kubeconfig", file]) == 0
        assert asked_sick == []
        assert main(["lint", "--kubeconfig", file, "--context", "sick"]) == 1

    assert asked_healthy
    assert asked_sick
    assert "A08" in capsys.readouterr().out


def test_a_context_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = kubeconfig(tmp_path, only="http://127.0.0.1:1")

    assert main(["lint", "--kubeconfig", file, "--context", "other"]) == 2
    assert "name one with --kubeconfig and --context" in capsys.readouterr().err


def test_pages_are_followed_to_the_last(tmp_path: Path) -> None:
    pages = iter([listed(SICK, **{"continue": "more"}), listed(dra.resource_slice(node="node-b"))])
    answers = dict(EMPTY)

    class Paging(dict[str, tuple[int, str]]):
        def get(self, path: str, default: Any = None) -> Any:
            return next(pages) if path == f"{DRA}/resourceslices" else super().get(path, default)

    with serving(Paging(answers)) as (url, asked):
        found = cluster.read_cluster(cluster.connect(kubeconfig(tmp_path, one=url), None))

    assert len(found.slices) == 2
    queries = [query for _, path, query in asked if path == f"{DRA}/resourceslices"]
    assert queries[0] == "limit=500"
    assert queries[1].endswith("continue=more")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, "<html>log in</html>"), "the answer is no JSON: is this a Kubernetes API server?"),
        ((403, json.dumps({"message": "forbidden"})), "status 403"),
        ((500, "oops"), "status 500"),
    ],
)
def test_an_answer_that_is_none_is_told_and_the_rest_is_read(
    answer: tuple[int, str], words: str, tmp_path: Path
) -> None:
    answers = {**EMPTY, f"{DRA}/deviceclasses": answer, f"{DRA}/resourceslices": listed(SICK)}
    with serving(answers) as (url, _):
        found = cluster.read_cluster(cluster.connect(kubeconfig(tmp_path, one=url), None))

    (problem,) = found.problems
    assert problem.document == "deviceclasses"
    assert words in problem.message
    assert len(found.slices) == 1
    assert found.absent == {"DeviceClass"}


def test_nothing_is_said_of_claims_classes_when_classes_could_not_be_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = dra.claim("c", dra.request("gpus", "gpu.nvidia.com"))
    answers = {**EMPTY, f"{DRA}/deviceclasses": (403, "{}"), f"{DRA}/resourceclaims": listed(claim)}
    with serving(answers) as (url, _):
        assert main(["lint", "--kubeconfig", kubeconfig(tmp_path, one=url), "-o", "json"]) == 2

    report = json.loads(capsys.readouterr().out)
    assert "A30" not in {finding["id"] for finding in report["findings"]}


def test_the_pods_own_account_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes import client, config

    before = client.Configuration.get_default_copy()
    with serving({**EMPTY, f"{DRA}/resourceslices": listed(SICK)}) as (url, asked):

        def in_cluster() -> None:
            settings = client.Configuration()
            settings.host = url
            client.Configuration.set_default(settings)

        monkeypatch.setattr(config, "load_incluster_config", in_cluster)
        try:
            found = cluster.read_cluster(cluster.connect(None, None))
        finally:
            client.Configuration.set_default(before)

    assert len(found.slices) == 1
    assert asked


def test_outside_of_a_pod_the_users_kubeconfig_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving({**EMPTY, f"{DRA}/resourceslices": listed(SICK)}) as (url, _):
        from kubernetes.config import kube_config

        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", kubeconfig(tmp_path, one=url))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

        found = cluster.read_cluster(cluster.connect(None, None))

    assert len(found.slices) == 1


def test_without_the_client_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)

    with pytest.raises(UsageError, match=r"install gpudra\[cli\], or pipe kubectl's JSON"):
        cluster.connect(None, None)


def test_shapes_are_taken_from_a_cluster_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labelled = dra.node("node-a")
    labelled["metadata"]["labels"] = {"node.kubernetes.io/instance-type": "p5", "other": "x"}
    answers = {**EMPTY, f"{DRA}/resourceslices": listed(SICK), "/api/v1/nodes": listed(labelled)}
    with serving(answers) as (url, _):
        file = kubeconfig(tmp_path, one=url)

        assert main(["shape", "export", "--cluster", "--kubeconfig", file, "--of", "node-a"]) == 0
        out, err = capsys.readouterr()
        assert main(["shape", "export", "--cluster", "--kubeconfig", file, "--of", "node-z"]) == 2

    document = json.loads(out)
    assert document["identity"]["labels"] == {"node.kubernetes.io/instance-type": "p5"}
    assert "dropped: gpu.nvidia.com/gpu-0.taints" in err


def test_a_cluster_that_refuses_something_still_gives_a_shape_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {**EMPTY, f"{DRA}/resourceslices": listed(SICK), "/api/v1/nodes": (403, "{}")}
    with serving(answers) as (url, _):
        arguments = ["--cluster", "--kubeconfig", kubeconfig(tmp_path, one=url), "--of", "node-a"]
        assert main(["shape", "export", *arguments]) == 2

    out, err = capsys.readouterr()
    assert json.loads(out)["pools"]
    assert "unreadable: nodes: cannot be listed" in err
