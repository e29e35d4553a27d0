import errno

from mmcalib.child.failures import exhausted_resource, explain, root_cause


def chained(*words: str) -> BaseException:
    """An error caused by the next one, and so on."""
    first, *rest = words
    error = ValueError(first)
    error.__cause__ = chained(*rest) if rest else None
    return error


def test_the_inmost_message_comes_first_and_the_outermost_stays() -> None:
    error = chained("Failed to apply P on data=...", "while encoding", "no such token:\n <unk>")
    assert root_cause(error) == "no such token: <unk>"
    assert explain(error) == ("no such token: <unk> (in: Failed to apply P on data=...)", "")


def test_one_message_is_said_once_and_none_by_its_name() -> None:
    assert explain(chained("refused: too large", "too large")) == ("refused: too large", "")
    assert explain(KeyError()) == ("KeyError", "")
    assert explain(chained("x" * 2000)) == ("x" * 500, "")


def test_an_error_without_words_says_where_it_was_raised() -> None:
    try:
        assert len("ab") == 3
    except AssertionError as caught:
        error = AssertionError().with_traceback(caught.__traceback__)
    words, _ = explain(error)
    assert words == 'AssertionError in test_exception_words.py: assert len("ab") == 3'


TAKEN = (
    "Free memory on device cuda:0 (9.53/139.72 GiB) on startup is less than desired GPU memory "
    "utilization (0.92, 128.54 GiB). Decrease GPU memory utilization or reduce GPU memory used by "
    "other processes."
)


def test_memory_that_others_hold_is_one_line_with_both_figures_and_what_to_type() -> None:
    assert explain(ValueError(TAKEN)) == explain(chained("failed to start", TAKEN))
    assert explain(ValueError(TAKEN)) == (
        "9.53 of 139.72 GiB are free on cuda:0, but gpu_memory_utilization 0.92 needs 128.54 GiB: "
        "nvidia-smi lists what uses the rest; --gpu-memory-utilization 0.06 would fit",
        "",
    )
    unnamed, _ = explain(ValueError(TAKEN.replace("cuda:0 ", "")))
    assert unnamed.startswith("9.53 of 139.72 GiB are free on the GPU, but")
    full, _ = explain(ValueError(TAKEN.replace("9.53", "0.01")))
    assert full.endswith("lists what uses the rest")
    held = TAKEN.replace(
        "desired GPU memory utilization",
        "the engine's budget after excluding external process's weights",
    )
    assert explain(ValueError(held)) == (held, "")


class OutOfMemoryError(RuntimeError):
    """Named like torch's own."""


def test_an_exhausted_machine_is_told_by_the_kind_of_error() -> None:
    within = ValueError("in /data/memory/a.png")
    assert exhausted_resource(within) == ""
    within.__cause__ = OutOfMemoryError("CUDA")
    assert exhausted_resource(within) == "memory"
    assert exhausted_resource(MemoryError()) == "memory"
    assert exhausted_resource(chained("failed to start", TAKEN)) == "memory"
    assert exhausted_resource(OSError(errno.ENOSPC, "No space left on device")) == "disk space"
    assert exhausted_resource(PermissionError(errno.EACCES, "Permission denied")) == ""


def test_a_quantization_that_is_gone_is_not_answered_by_a_list_of_thirty() -> None:
    words = "Unknown quantization method: exl3. Must be one of ['humming', 'auto_awq', 'fp8']."
    error = ValueError(f"1 validation error for ModelConfig Value error, {words} [type=value_error")
    assert explain(error) == (
        "the installed vLLM has no quantization method exl3",
        "a checkpoint in fp8, or an unquantized one with --quantization fp8",
    )


def test_code_of_a_model_is_answered_with_the_flag() -> None:
    error = ValueError(
        "The repository /m contains custom code which must be executed to correctly load the "
        "model. Please pass the argument `trust_remote_code=True` to allow custom code to be run."
    )
    words, hint = explain(error)
    assert words.endswith("runs only if you trust it")
    assert hint.endswith("-- --trust-remote-code")


def test_a_draft_model_that_is_not_here_is_answered_with_its_download() -> None:
    words = "Invalid repository ID or local directory specified: 'org/draft'. Please verify"
    _, hint = explain(ValueError(words))
    assert hint == "hf download org/draft config.json (mmcalib fetches only --model)"
