"""Nothing private is written down: prompts, keys and tenants are looked for in all that extproc says."""

from __future__ import annotations

import http.client
import json
import urllib.request
from pathlib import Path

from tests.support.stack import CONFIG, running_stack

PROMPT, KEY, TENANT = "canary-in-the-prompt", "sk-canary-in-the-key", "canary-tenant-0123456789abcdef"


def test_prompts_keys_and_tenants_stay_out_of_logs_metrics_and_views(tmp_path: Path) -> None:
    config = {**CONFIG, "logs": {"level": "debug", "requests": True}}
    with running_stack(config, directory=tmp_path, emulators=[["--max-num-seqs", "1"]]) as stack:
        for body in (
            {"model": "emulated", "max_tokens": 4, "messages": [{"role": "user", "content": PROMPT}]},
            {"model": "emulated", "max_tokens": 4, "stream": True, "prompt": PROMPT},
            {"model": PROMPT, "messages": [{"role": "user", "content": PROMPT}]},
            {"model": 5, "messages": PROMPT},
        ):
            for text in (json.dumps(body), json.dumps(body)[:-1]):
                connection = http.client.HTTPConnection("127.0.0.1", stack.envoy_port, timeout=30)
                headers = {
                    "content-type": "application/json",
                    "authorization": f"Bearer {KEY}",
                    "x-llm-d-inference-fairness-id": TENANT,
                    "x-priority": KEY,
                }
                path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
                connection.request("POST", path, text, headers)
                connection.getresponse().read()
                connection.close()
        said = {"log": stack.child("extproc").log.read_text()}
        for path in ("/metrics", "/debug/state", "/api/history", "/config"):
            with urllib.request.urlopen(stack.admin_url + path, timeout=10) as answer:
                said[path] = answer.read().decode()
    assert "ext_proc port" in said["log"]
    for place, text in said.items():
        assert KEY not in text, place
        assert TENANT not in text, place
        if place == "/metrics":  # a model's name may be a label, bounded in number and length
            text = text.replace(f'model="{PROMPT}"', "")
        assert PROMPT not in text, place
