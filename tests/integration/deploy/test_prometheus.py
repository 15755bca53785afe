"""Prometheus' own tool reads our rules and runs the unit tests of the alerts."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from extproc.runtime.catalogue import Kind, all_metrics

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
PROMTOOL = shutil.which("promtool")
FOREIGN = {"up", "envoy_http_ext_proc_failure_mode_allowed", "envoy_http_ext_proc_message_timeouts"}

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool here")


def promtool(*arguments: str) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_the_rules_are_valid() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES))


@needs_promtool
def test_each_alert_fires_on_its_cause_and_not_without() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(Path(__file__).parent / "alerts.yaml"))


def test_every_alert_has_a_unit_test_and_says_what_to_do() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    cases = yaml.safe_load((Path(__file__).parent / "alerts.yaml").read_text())["tests"]
    fired = {
        test["alertname"]
        for case in cases
        for test in case.get("alert_rule_test", ())
        if test.get("exp_alerts")
    }
    assert fired == set(alerts)
    for rule in alerts.values():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} <= rule["annotations"].keys()


def test_every_metric_in_a_rule_is_in_the_catalogue() -> None:
    known = set(FOREIGN)
    for metric in all_metrics():
        parts = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        known |= {metric.name + part for part in parts}
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    for rule in rules:
        expression = re.sub(r"\b(by|without|ignoring|on) \([^)]*\)", "", rule["expr"])
        names = set(re.findall(r"\b(?:extproc|envoy)[_:][a-z_:0-9]+", expression))
        assert names <= known | recorded, names - known - recorded
