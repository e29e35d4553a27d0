"""Flags of `vllm serve`, read by its own parser, and a model that is opened under them."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from mmcalib.configs.read import read_configuration
from mmcalib.engine.host import EngineHost
from mmcalib.errors import UsageError
from mmcalib.limits.policy import Policy
from mmcalib.progress import Silent
from mmcalib.workflows.run.session import GivenConfiguration, read_your_config
from tests.builders import some

pytestmark = pytest.mark.engine


def yours(host: EngineHost, flags: str, *, pinned: bool = False) -> GivenConfiguration:
    """Read what stands behind `vllm serve` in a shell."""
    read = read_configuration(None, shlex.split(flags))
    return some(read_your_config(read, host, Silent(), pinned=pinned))


def said(host: EngineHost, flags: str, *, pinned: bool = False) -> dict[str, object]:
    return yours(host, flags, pinned=pinned).kept_args


@pytest.mark.parametrize(
    ("flags", "given"),
    [
        ("-tp 4 -q awq", {"tensor_parallel_size": 4, "quantization": "awq"}),
        ("--kv-cache-dtype fp8 --enable-lora", {"kv_cache_dtype": "fp8", "enable_lora": True}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        # What writes prompts is among them, and what is the server's alone is not.
        (
            """--default-chat-template-kwargs '{"add_vision_id": true}' --port 9000""",
            {"default_chat_template_kwargs": {"add_vision_id": True}},
        ),
        (
            "--enable-auto-tool-choice --tool-call-parser hermes",
            {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
        ),
        ("--chat-template-content-format openai", {"chat_template_content_format": "openai"}),
        # Nested ones stay nested.
        (
            """--speculative-config '{"method": "ngram", "num_speculative_tokens": 2}'""",
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
        ),
    ],
)
def test_flags_are_engine_arguments(host, flags: str, given: dict[str, object]) -> None:
    assert said(host, flags) == given


def test_a_template_is_written_by_where_it_lies(host: EngineHost) -> None:
    """The emitted file may be served from another folder."""
    path = Path("chat.jinja")
    path.write_text("{{ messages }}")
    try:
        given = said(host, f"--chat-template {path.name}")
    finally:
        path.unlink()
    assert given == {"chat_template": str(path.absolute())}
    inline = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert said(host, f"--chat-template '{inline}'") == {"chat_template": inline}


def test_limits_are_compared_with_and_options_are_taken(host: EngineHost) -> None:
    limits = "--limit-mm-per-prompt.image 2 --max-num-batched-tokens 8192 --max-model-len 8k"
    found = yours(host, f"{limits} --max-num-seqs 16 --port 9000 -tp 2")
    assert found.kept_args == {"tensor_parallel_size": 2}
    assert sorted(found.derived_names) == ["limit_mm_per_prompt", "max_num_batched_tokens"]
    assert found.engine_args["limit_mm_per_prompt"] == {"image": 2}
    policy = found.fill_policy(Policy(max_num_seqs=4))
    assert (policy.max_model_len, policy.max_num_seqs) == (8000, 4)
    assert policy.max_num_batched_tokens is None


def test_without_requests_your_counts_and_cache_hold(host: EngineHost) -> None:
    limits = '{"image": {"count": 3, "width": 512, "height": 512}, "video": 0}'
    flags = f"--limit-mm-per-prompt '{limits}' --mm-processor-cache-gb 1"
    found = replace(yours(host, flags), has_requests=False)
    assert found.fill_policy(Policy()).count == {"image": 3}
    assert found.fill_policy(Policy(count={"image": 1})).count == {"image": 1}
    assert found.kept_args == {"mm_processor_cache_gb": 1}
    assert found.derived_names == ["limit_mm_per_prompt"]
    assert replace(found, has_requests=True).fill_policy(Policy()).count == {}


def test_a_context_that_is_left_to_vllm_is_not_taken(host: EngineHost) -> None:
    assert yours(host, "--max-model-len -1").fill_policy(Policy()) == Policy()


def test_a_file_that_vllm_refuses_is_one_for_validate(host: EngineHost, tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("model: a/b\nmax-model-len: many\n")
    with pytest.raises(UsageError) as refused:
        read_your_config(read_configuration(file), host, Silent())
    assert refused.value.hint == f"mmcalib validate --config {file}"


@pytest.mark.parametrize("flags", ["--tensor-paralel-size 2", "--tensor-parallel-size two"])
def test_others_are_one_line(host: EngineHost, flags: str) -> None:
    with pytest.raises(UsageError) as refused:
        said(host, flags)
    assert refused.value.message.startswith("vLLM rejects these flags")
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("flags", ["-cc.mode 0", """-cc '{"mode": 0}'"""])
def test_what_pinning_writes_is_refused_by_any_of_its_names(host: EngineHost, flags: str) -> None:
    assert said(host, flags)
    with pytest.raises(UsageError, match="--pin-kv-cache exclude each other"):
        said(host, flags, pinned=True)
