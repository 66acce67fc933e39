"""The files of deploy/: the dashboard asks for metrics that exist; manifests, image and settings agree."""

import json
import re

import yaml
from prometheus_client.parser import text_string_to_metric_families

from pasta_jax.decode.engine import Engine
from pasta_jax.serve.metrics import Metrics
from pasta_jax.serve.settings import ServeSettings
from tests import ROOT

DEPLOY = ROOT / "deploy"
DEPLOYMENT, SERVICE = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]["spec"]


def samples() -> set[str]:
    """The names of all samples of a server that has answered once."""
    metrics = Metrics(Engine(lambda: None, 1, 1))
    metrics.responses.labels("/", "200").inc()
    metrics.answers.labels("stop").inc()
    families = text_string_to_metric_families(metrics.text().decode())
    return {sample.name for family in families for sample in family.samples}


def test_the_dashboard_asks_for_metrics_that_exist():
    board = json.loads((DEPLOY / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    names = {name for expr in asked for name in re.findall(r"pasta_\w+", expr)}
    for of in (
        "fork_delay",
        "forks_refused",
        "promise_error",
        "promised",
        "written",
        "drafts_kept",
        "queue",
        "answers",
    ):
        assert any(name.startswith(f"pasta_{of}") for name in names), of
    assert names <= samples()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_manifests_agree_with_the_image_and_the_settings():
    image = (DEPLOY / "Dockerfile").read_text()
    (container,) = POD["containers"]
    assert f"USER {POD['securityContext']['runAsUser']}\n" in image
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/cache", "/tmp"}
    assert "PASTA_JAX_CACHE=/cache" in image
    port = ServeSettings().port
    assert container["ports"][0]["containerPort"] == port
    assert f"EXPOSE {port}\n" in image
    assert POD["terminationGracePeriodSeconds"] > ServeSettings().limits.drain_s
    assert f"--config.key_variable={container['env'][0]['name']}" in image
    assert "annotations" not in DEPLOYMENT["spec"]["template"]["metadata"]  # by which Prometheus reads without a key
    assert SERVICE["spec"]["selector"] == DEPLOYMENT["spec"]["selector"]["matchLabels"]
    folders = re.findall(r"^COPY (\w+) \w+$", image, re.MULTILINE)
    assert {"pasta_jax", "launch"} <= {folder for folder in folders if (ROOT / folder).is_dir()} == {*folders}


def test_the_cache_is_taken_over_at_every_start():
    """A volume that is kept belongs to the server already; root without CAP_FOWNER may change the mode of its own."""
    (container,) = POD["initContainers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    owner = 0
    for command in 2 * container["command"][-1].split(" && "):
        verb, value, _ = command.split()
        if verb == "chown":
            owner = int(value)
        else:
            assert (verb, value, owner) == ("chmod", "700", 0)
    assert owner == POD["securityContext"]["runAsUser"]
