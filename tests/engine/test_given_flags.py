"""Flags of `vllm serve`, read by its own parser, and a model that is opened under them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ParseServeConfig, ServeConfig
from mmcalib.errors import UsageError
from mmcalib.progress import Silent
from mmcalib.workflows.calibration.given import said_by_flags

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def host() -> Iterator[EngineHost]:
    with EngineHost() as started:
        yield started


def said(host: EngineHost, *flags: str, pinned: bool = False) -> dict[str, object]:
    def parse(words: Sequence[str]) -> ServeConfig:
        return host.ask(ParseServeConfig(None, tuple(words)), "reading vLLM's flags")

    return said_by_flags(flags, parse, Silent(), pinned=pinned)


def test_flags_are_engine_arguments(host: EngineHost) -> None:
    words = ["-tp", "4", "-q", "awq", "--kv-cache-dtype", "fp8", "--enable-lora"]
    words.append("--no-enable-prefix-caching")
    assert said(host, *words) == {
        "tensor_parallel_size": 4,
        "quantization": "awq",
        "kv_cache_dtype": "fp8",
        "enable_lora": True,
        "enable_prefix_caching": False,
    }


def test_nested_ones_stay_nested(host: EngineHost) -> None:
    given = said(host, "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}')
    assert given == {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}


def test_defaults_say_nothing(host: EngineHost) -> None:
    assert said(host, "--tensor-parallel-size", "1") == {}


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--port", "9000"), "--port: of vLLM's server"),
        (("--tensor-paralel-size", "2"), "vLLM does not take these flags"),
        (("--tensor-parallel-size", "two"), "vLLM does not take these flags"),
    ],
)
def test_others_are_one_line(host: EngineHost, flags: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError) as refused:
        said(host, *flags)
    assert refused.value.message.startswith(why)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("flags", [("-cc.mode", "0"), ("-cc", '{"mode": 0}')])
def test_what_pinning_writes_is_refused_by_any_of_its_names(
    host: EngineHost, flags: tuple[str, ...]
) -> None:
    assert said(host, *flags)
    with pytest.raises(UsageError, match="and --pin-kv-cache are one or the other"):
        said(host, *flags, pinned=True)
