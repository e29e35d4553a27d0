from mmcalib.gate.fit import UNBOUNDED, PromptTokens, TokenRange, fit_prompts, prompts_to_count
from tests.builders import some

RESERVE = 100


def prompt(
    origin: str, items: int, text: TokenRange | int, answer: int | None = None, count: int = 1
) -> PromptTokens:
    words = TokenRange.exactly(text) if isinstance(text, int) else text
    return PromptTokens(origin, count, items, words, answer)


def test_items_without_a_request_leave_the_reserve_for_text_and_answer() -> None:
    """The reserve is assumed, so only items as long as the context are rejected for certain."""
    prompts = [PromptTokens("a", 5, 900), PromptTokens("b", 2, 901), PromptTokens("c", 3, 1000)]
    found = some(fit_prompts(prompts, RESERVE, 1000))
    assert (found.longest.origin, found.needed_tokens) == ("c", 1100)
    assert (found.prompts_too_long, found.prompts_cut, found.passes) == (3, 2, False)
    assert some(fit_prompts([PromptTokens("a", 1, 900)], RESERVE, 1000)).fits_answers


def test_a_request_needs_its_items_its_text_and_its_answer() -> None:
    found = some(
        fit_prompts([prompt("r:1", 500, 300, 4096), prompt("r:2", 900, 20)], RESERVE, 8192)
    )
    assert (found.longest.origin, found.needed_tokens) == ("r:1", 4896)
    assert found.description == (
        "500 tokens of media + 300 of text + 4096 for the requested answer"
    )
    reserved = some(fit_prompts([prompt("r:2", 900, 20)], RESERVE, 8192))
    assert reserved.description == "900 tokens of media + 20 of text + 100 for the answer (assumed)"
    assert reserved.needed_tokens == 1020


def test_what_vllm_refuses_what_it_cuts_and_what_nobody_knows() -> None:
    """vLLM rejects a length equal to the context, and answers above it."""
    prompts = [
        prompt("as long", 900, 100, 1, count=2),
        prompt("answer too long", 1, 1, 1001, count=3),
        prompt("cut", 900, 99, 2, count=5),
        prompt("whole", 900, 99, 1, count=7),
        prompt("a bound", 900, TokenRange(1, 100), 1, count=11),
        prompt("no bound", 900, UNBOUNDED, 1, count=13),
    ]
    found = some(fit_prompts(prompts, RESERVE, 1000))
    assert (found.prompts_too_long, found.prompts_cut, found.unknown) == (5, 5, 24)
    assert found.problems == (
        "5 prompts are longer than the context: vLLM rejects them; 5 have less room for the "
        "answer than requested or reserved; the text of 24 could not be counted"
    )


def test_only_what_could_change_the_answer_is_counted() -> None:
    prompts = [
        prompt("counted", 100, 200, 50),
        prompt("too short to matter", 100, TokenRange(1, 200), 50),
        prompt("could be longer", 100, TokenRange(1, 201), 50),
        prompt("longest bound", 100, TokenRange(1, 900), 50),
        prompt("no bound", 0, UNBOUNDED),
        PromptTokens("a file", 1, 90),
    ]
    assert prompts_to_count(prompts, RESERVE, 2000) == [4, 3, 2]
    # What may not fit is counted, too, to say how many do not.
    assert prompts_to_count(prompts, RESERVE, 349) == [4, 3, 2, 1]
