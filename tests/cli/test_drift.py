"""`mmcalib drift` over requests and over kept scrapes, against the example's calibration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.docs.refresh import EXAMPLE
from tests.schemas import fits

# Width and height of 336, 2,500 and 16,290 tokens in Qwen2.5-VL: quantiles of the example.
SIZES = {"middle": (448, 588), "large": (1400, 1400), "largest": (5400, 2700)}


def request(*names: str) -> str:
    parts = [{"type": "image_url", "image_url": {"url": f"{name}.png"}} for name in names]
    content = [{"type": "text", "text": "What is this?"}, *parts]
    return json.dumps({"messages": [{"role": "user", "content": content}]})


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    """Loads over three pictures, each a requests file."""
    for name, size in SIZES.items():
        Image.new("1", size).save(tmp_path / f"{name}.png")
    names = ["largest"] + ["large"] * 13 + ["middle"] * 57
    same = [request(*names[n : n + 2]) for n in range(0, 66, 2)]
    same += [request(name) for name in names[66:]]
    loads = {
        "same": same,
        "heavier": [request("large", "large") for _ in range(40)],
        "more": [request("large", *["middle"] * 4) for _ in range(40)],
        "refused": [*same, request(*["middle"] * 40), "{broken"],
        "few": [request("large")] * 3,
    }
    for name, lines in loads.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return tmp_path


def drifted(cli: Any, *words: object) -> tuple[int, dict[str, Any], str]:
    said = cli("drift", "--calibration", EXAMPLE, "--json", *words)
    assert said.out, said.err
    fits("drift", said.out)
    return said.code, json.loads(said.out), said.err


def shifted(document: dict[str, Any]) -> set[str]:
    return {f["name"] for f in document["figures"] if f["likeness"] == "shifted"}


def test_the_same_load_fits(cli, traffic: Path) -> None:
    code, document, err = drifted(cli, "--requests", traffic / "same.jsonl")
    assert (code, document["verdict"], shifted(document)) == (0, "fits", set()), err
    today = {f["name"]: (f["today"], f["calibrated"]) for f in document["figures"]}
    assert today["image tokens p50"] == (336, 336)
    assert today["image tokens p99"] == (16290, 16290)
    assert today["image items per request"][0] == pytest.approx(71 / 38)
    assert "fits, by 38 requests" in err


@pytest.mark.parametrize(
    ("load", "names"),
    [
        ("heavier", {"image tokens p50", "image tokens p99"}),
        ("more", {"image tokens p99", "image items per request"}),
        ("refused", {"refused"}),
    ],
)
def test_a_shifted_load_is_named(cli, traffic: Path, load: str, names: set[str]) -> None:
    code, document, err = drifted(cli, "--requests", traffic / f"{load}.jsonl")
    assert (code, document["verdict"]) == (3, "shifted")
    assert names <= shifted(document)
    assert all(name in err for name in names)


def test_few_requests_shift_nothing(cli, traffic: Path) -> None:
    assert drifted(cli, "--requests", traffic / "few.jsonl")[0] == 0


def test_what_may_be_refused_is_for_the_user_to_say(cli, traffic: Path) -> None:
    words = ("--requests", traffic / "refused.jsonl", "--tolerate", "0.1")
    assert "refused" not in shifted(drifted(cli, *words)[1])


def scrape(requests: int, tokens: int, items: int, refused: int = 0) -> str:
    """As a server of 0.32 gives it, of two engines, one of them idle."""
    steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000]
    lines = ["# TYPE vllm:request_prompt_tokens histogram"]
    for engine, count in (("0", requests), ("1", 0)):
        tags = f'engine="{engine}",model_name="m"'
        for end in [*map(float, steps), float("inf")]:
            le = "+Inf" if end == float("inf") else str(end)
            within = count if tokens <= end else 0
            lines.append(f'vllm:request_prompt_tokens_bucket{{{tags},le="{le}"}} {within}.0')
        lines.append(f"vllm:request_prompt_tokens_count{{{tags}}} {count}.0")
        lines.append(f"vllm:request_prompt_tokens_sum{{{tags}}} {count * tokens}.0")
        lines.append(f"vllm:mm_cache_queries_total{{{tags}}} {items if count else 0}.0")
        lines.append(f"vllm:mm_cache_hits_total{{{tags}}} 0.0")
        lines.append(f"vllm:kv_cache_usage_perc{{{tags}}} 0.25")
    for status, count in (("2xx", requests), ("4xx", refused)):
        tags = f'handler="/v1/chat/completions",method="POST",status="{status}"'
        lines.append(f"http_requests_total{{{tags}}} {count}.0")
    lines.append('http_requests_total{handler="/v1/models",method="GET",status="4xx"} 900.0')
    return "\n".join(lines) + "\n"


def test_a_kept_scrape_and_the_window_since_another(cli, tmp_path: Path) -> None:
    (tmp_path / "before").write_text(scrape(100, 3000, 205))
    (tmp_path / "after").write_text(scrape(200, 3000, 610, refused=5))
    code, document, _ = drifted(cli, "--metrics", "before")
    assert (code, document["requests"], shifted(document)) == (0, 100, set())
    code, document, _ = drifted(cli, "--metrics", "after", "--since", "before")
    assert (code, document["requests"]) == (3, 100)
    assert shifted(document) == {"refused", "items per request"}
    today = {f["name"]: f["today"] for f in document["figures"]}
    assert today["items per request"] == 4.05
    assert today["KV cache in use"] == 0.25


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--metrics", "before", "--since", "after"], 1, "started anew"),
        (["--metrics", "before", "--since", "before"], 1, "no request"),
        (["--metrics", "nowhere"], 1, "cannot read nowhere"),
        (["--metrics", "empty"], 1, "no metrics of vLLM"),
        (["--metrics", "http://127.0.0.1:1/metrics"], 1, "cannot read"),
        (["--since", "before"], 2, "one place"),
        (["--requests", "r.jsonl", "--since", "before"], 2, "--since needs --metrics"),
        (["--metrics", "before", "--tolerate", "7"], 2, "no share"),
    ],
)
def test_mistakes_are_a_line(cli, tmp_path: Path, words: list[str], code: int, says: str) -> None:
    (tmp_path / "before").write_text(scrape(100, 3000, 205))
    (tmp_path / "after").write_text(scrape(200, 3000, 610))
    (tmp_path / "empty").write_text("python_info 1.0\n")
    said = cli("drift", "--calibration", EXAMPLE, *words)
    assert (said.code, said.out) == (code, "")
    assert says in said.err
