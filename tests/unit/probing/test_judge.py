"""The judge, the comparison and the file, by answers that are written here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import jsonschema
import msgspec
import pytest

from pymllm.cli.schema import make_schema
from pymllm.errors import TraceError
from pymllm.oracle.verdicts import Verdict
from pymllm.probing.clients import LlamaCpp, OpenAI, Sglang, read_figures
from pymllm.probing.comparison import compare, measure
from pymllm.probing.judge import judge
from pymllm.probing.programs import Generator, requests_of
from pymllm.probing.records import (
    Answer,
    Ask,
    Burst,
    Cold,
    Drop,
    Figures,
    Head,
    History,
    Look,
    Operation,
    Place,
    Reset,
    Step,
    asks_of,
    dump_history,
    read_history,
    write_history,
)
from pymllm.probing.telling import curl_script, lines_of
from tests.unit.cli.typed import refused, typed

PROMPT = (1, 2, 3, 4)
HEAD = Head(server="vllm", api="openai", cold="salt", has_salts=True, is_clean=True)


def answer(*values: float, cached: int | None = 0, prompt: tuple[int, ...] = PROMPT) -> Answer:
    """Each place lists token 7 at a value, and token 8 three below zero."""
    places = tuple(Place(7, ((7, value), (8, -3.0))) for value in values)
    return Answer(prompt=prompt, places=places, cached=cached)


def judged(*steps: Step, head: Head = HEAD) -> tuple[str, str, str]:
    violation = judge(History(head, steps)).violation
    return ("", "", "") if violation is None else (violation.law, violation.expected, violation.observed)


def warm_and_cold(warm: Answer, cold: Answer) -> tuple[Step, ...]:
    first = Step(operation=Ask(1, PROMPT, 1), answers=(answer(-1.0),))
    again = Step(operation=Ask(2, PROMPT, 1), answers=(warm,))
    return first, again, Step(operation=Cold((2,)), answers=(cold,))


def test_a_warm_answer_that_differs_breaks_v1() -> None:
    """By more than the tolerance alone; what was not served from the cache is no test."""
    off = judged(*warm_and_cold(answer(-1.5, cached=3), answer(-1.0)))
    assert off == ("V1", "-1.000000 for token 7", "-1.500000 for token 7")
    assert judged(*warm_and_cold(answer(-1.00005, cached=3), answer(-1.0))) == ("", "", "")
    assert judged(*warm_and_cold(answer(-1.5, cached=0), answer(-1.0))) == ("", "", "")
    verdict = judge(History(HEAD, warm_and_cold(answer(-1.0), answer(-1.0)))).verdict_of("V1")
    assert verdict is Verdict.UNKNOWN


def test_an_answer_in_company_that_differs_breaks_v2() -> None:
    """Cold and at once, beside cold and alone."""
    steps = [
        Step(operation=Burst((Ask(1, PROMPT, 1), Ask(2, (9, 9), 1))), answers=(answer(-1.0), answer(-1.0))),
        Step(operation=Cold((1,)), answers=(answer(-1.0),)),
        Step(operation=Cold((2,)), answers=(answer(-1.0),)),
        Step(operation=Cold((1, 2)), answers=(answer(-1.0), answer(-2.0))),
    ]
    assert judged(*steps)[0] == "V2"


def test_cached_tokens_have_bounds() -> None:
    """V3: less than the prompt, no more than was seen; V5: by this namespace; V4: none, of a cold one."""
    first = Step(operation=Ask(1, PROMPT, 1, "a"), answers=(answer(-1.0),))
    whole = Step(operation=Ask(2, PROMPT, 1, "a"), answers=(answer(-1.0, cached=4),))
    beyond = Step(operation=Ask(2, (1, 2, 9, 9), 1, "a"), answers=(answer(cached=3, prompt=(1, 2, 9, 9)),))
    other = Step(operation=Ask(2, PROMPT, 1, "b"), answers=(answer(-1.0, cached=3),))
    assert judged(first, whole) == ("V3", "at most 3", "4")
    assert judged(first, beyond) == ("V3", "at most 2", "3")
    assert judged(first, other) == ("V5", "at most 0", "3")
    flag = msgspec.structs.replace(HEAD, cold="flag", has_salts=False)
    assert judged(first, Step(operation=Cold((1,)), answers=(answer(cached=2),)), head=flag)[0] == "V4"
    unclean = msgspec.structs.replace(HEAD, is_clean=False)
    assert judged(first, beyond, head=unclean) == ("", "", "")


def test_a_server_that_shifts_keys_does_not_claim_exact_reuse() -> None:
    """Then V1 is not judged, and of V3 that something was computed; the head of a file says so, too."""
    first = Step(operation=Ask(1, PROMPT, 1), answers=(answer(-1.0),))
    shifted = answer(-2.0, cached=3, prompt=(9, 1, 2, 3))
    beyond = Step(operation=Ask(2, (9, 1, 2, 3), 1), answers=(shifted,))
    cold = Step(operation=Cold((2,)), answers=(answer(-1.0, prompt=(9, 1, 2, 3)),))
    assert judged(first, beyond, cold)[0] == "V3"
    head = msgspec.structs.replace(HEAD, without=("exact-reuse",))
    found = judge(History(head, (first, beyond, cold)))
    assert found == judge(History(HEAD, (first, beyond, cold)), without=["exact-reuse"])
    verdicts = {law: found.verdict_of(law) for law in ("V1", "V3", "V5")}
    assert verdicts == {"V1": Verdict.NOT_CLAIMED, "V3": Verdict.HOLDS, "V5": Verdict.NOT_CLAIMED}
    whole = Step(operation=Ask(2, PROMPT, 1), answers=(answer(cached=4),))
    assert judged(first, whole, head=head) == ("V3", "at most 3", "4")


def test_a_dropped_stream_may_have_left_more_than_was_told() -> None:
    """V3 allows its prompt, and as many tokens behind it as it was to produce."""
    dropped = Step(operation=Drop(Ask(1, PROMPT, 2), 0), dropped=PROMPT)
    longer = (*PROMPT, 5, 6, 7, 8)
    for cached, law in ((6, ""), (7, "V3")):
        step = Step(operation=Ask(2, longer, 1), answers=(answer(cached=cached, prompt=longer),))
        assert judged(dropped, step)[0] == law


def test_metrics_come_to_rest_and_have_the_sums() -> None:
    """V6 and V7; where others use the server, neither is judged."""
    look = Figures(running=0, prompt_tokens=10, generated=5, finished=1)
    asked = Step(operation=Ask(1, PROMPT, 1), answers=(answer(-1.0),))

    def after(**changes: float) -> str:
        last = msgspec.structs.replace(
            look, **{"prompt_tokens": 14, "generated": 6, "finished": 2, **changes}
        )
        return judged(Step(operation=Look(), figures=look), asked, Step(operation=Look(), figures=last))[0]

    assert after() == ""
    assert after(running=1) == "V6"
    assert after(generated=7) == "V7"
    assert after(generated=7, finished=3) == ""


def test_usage_counts_the_prompt_that_was_sent() -> None:
    """V7: as many as the token ids, and as stand before the first prompt; of texts nobody knows how many."""

    def asked(*told: int, **changes: object) -> tuple[str, str, str]:
        steps = (
            Step(
                operation=Ask(id, PROMPT, 1),
                answers=(msgspec.structs.replace(answer(-1.0), prompt_tokens=count),),
            )
            for id, count in enumerate(told, 1)
        )
        return judged(*steps, head=msgspec.structs.replace(HEAD, **changes))

    assert asked(4, 4) == asked(5, 5) == ("", "", "")
    assert asked(4, 1) == ("V7", "4", "1")
    assert asked(5, 4) == ("V7", "5", "4")
    assert asked(3) == ("V7", "4", "3")
    assert asked(4, 1, has_ids=False) == ("", "", "")
    judgement = judge(History(HEAD, warm_and_cold(answer(-1.0), answer(-1.0))))
    assert judgement.verdict_of("V7") is Verdict.NOT_CLAIMED


def test_what_a_reset_leaves_is_not_beyond_every_prompt() -> None:
    """V4 while an earlier prompt explains it, and V3 where none does."""
    first = Step(operation=Ask(1, PROMPT, 1), answers=(answer(-1.0),))
    steps = (first, Step(operation=Reset()))
    for prompt, law in (((1, 2, 3, 9), "V4"), ((1, 2, 9, 9), "V3")):
        left = Step(operation=Ask(2, prompt, 1), answers=(answer(cached=3, prompt=prompt),))
        assert judged(*steps, left)[:2] == (law, "at most 0")
    again = Step(operation=Ask(2, PROMPT, 1), answers=(answer(),))
    warm = Step(operation=Ask(3, PROMPT, 1), answers=(answer(cached=3),))
    assert judged(*steps, again, warm) == ("", "", "")


def test_only_a_clear_lead_makes_another_token_count() -> None:
    """Near ties may fall either way; places without log-probabilities are left out, as is what follows."""
    tie, clear = Place(7, ((7, -1.0), (8, -1.00001))), Place(7, ((7, -1.0), (8, -3.0)))
    fallen = Answer(prompt=PROMPT, places=(Place(8, ((8, -1.0), (7, -1.00001))), clear))
    assert compare(Answer(prompt=PROMPT, places=(tie, clear)), fallen).size < 1e-4
    bare = Answer(prompt=PROMPT, places=(Place(8), clear))
    found = compare(Answer(prompt=PROMPT, places=(clear, clear)), bare)
    assert (found.size, found.observed, found.left_out) == (2.0, "token 8", 1)
    unknown = compare(Answer(prompt=PROMPT, places=(Place(7), clear)), bare)
    assert (unknown.places, unknown.left_out) == (0, 2)
    ended = Answer(prompt=PROMPT, places=(clear,), is_stopped=True)
    assert compare(Answer(prompt=PROMPT, places=(clear, clear)), ended).observed == "the end of the answer"


def test_a_spread_that_is_too_large_is_unknown() -> None:
    """The same request cold again differs by 0.1."""
    first, again, cold = warm_and_cold(answer(-2.9, cached=3), answer(-1.0))
    steps = (first, again, cold, Step(operation=Cold((2,)), answers=(answer(-1.1),)))
    tolerance = measure(steps, 1e-4)
    assert (round(tolerance.judged, 6), tolerance.company) == (2.0, None)
    judgement = judge(History(HEAD, steps))
    assert (judgement.violation, judgement.verdict_of("V1")) == (None, Verdict.UNKNOWN)
    assert "alone it differs from itself by 0.1, too much" in judgement.reasons["V1"]


def measured(off: float) -> tuple[Step, ...]:
    """Return a measurement in which what was just cached differs by so much."""
    asked = [answer(-1.0), answer(-1.0 + off, cached=3)]
    cold = Step(operation=Cold((2,)), answers=(answer(-1.0),))
    look = Step(operation=Look(), figures=Figures())
    asks = (Step(operation=Ask(id, PROMPT, 1), answers=(it,)) for id, it in enumerate(asked, 1))
    return look, *asks, cold, cold, look


def later(off: float, id: int = 9) -> tuple[Step, ...]:
    """Return a request behind a measurement, served from the cache and off by so much."""
    warm = Step(operation=Ask(id, PROMPT, 1), answers=(answer(-1.0 + off, cached=3),))
    return warm, Step(operation=Cold((id,)), answers=(answer(-1.0),))


def test_rounding_of_what_was_just_cached_is_measured() -> None:
    """By 0.0002: so what is served from the cache counts from 0.004."""
    tolerance = measure(measured(0.0002), 1e-4)
    assert round(tolerance.judged_warm, 6) == 0.004
    assert (tolerance.judged, tolerance.doubtful) == (1e-4, 0.0)
    assert judge(History(HEAD, (*measured(0.0002), *later(0.003)))).verdict_of("V1") is Verdict.HOLDS
    assert judged(*measured(0.0002), *later(0.005))[0] == "V1"
    assert judged(*measured(0.0), *later(0.003))[0] == "V1", "nothing is rounded, so any difference counts"


def test_larger_differences_of_what_was_just_cached_are_in_doubt() -> None:
    """By 0.02: rounding or a fault, so V1 neither holds nor is violated, unless 0.2 is exceeded."""
    judgement = judge(History(HEAD, (*measured(0.02), *later(0.1))))
    assert (judgement.violation, judgement.verdict_of("V1")) == (None, Verdict.UNKNOWN)
    assert "what was just cached differs by 0.02 from cold answers, and here 0.1" in judgement.reasons["V1"]
    found = judge(History(HEAD, (*measured(0.02), *later(0.1), *later(0.5, 10))))
    assert (found.verdict_of("V1"), found.reasons.get("V1")) == (Verdict.VIOLATED, None)
    assert judged(*measured(0.3))[0] == "V1", "no rounding is as large"
    assert [it.size for it in found.differences if it.request > 2] == pytest.approx([0.1, 0.5])


def test_equal_seeds_are_equal_programs() -> None:
    """And bounded ones; what goes on with an answer names a request that has one."""

    def drawn(seed: int) -> tuple[Operation, ...]:
        made = Generator(seed, longest=96, max_tokens=4, has_salts=True, can_reset=True)
        return (*made.measure(), *(it for operations in made.rounds(200) for it in operations))

    program = drawn(5)
    assert program == drawn(5) != drawn(6)
    assert requests_of(program) == 212
    kinds = {type(it) for it in program}
    assert kinds == {Ask, Burst, Cold, Drop, Look, type(next(it for it in program if "Reset" in str(it)))}
    dropped = {it.ask.id for it in program if isinstance(it, Drop)}
    asks = [ask for it in program if isinstance(it, Ask | Burst) for ask in getattr(it, "asks", (it,))]
    continued = {ask.after for ask in asks} - {None}
    assert continued
    assert not continued & dropped


def test_some_prompts_lack_a_piece_of_their_document() -> None:
    """A server that shifts cached tokens over a gap, as with --cache-reuse, then has some to shift."""
    made = Generator(0, longest=160, max_tokens=4, has_salts=False, can_reset=False)
    asks = [ask for operations in made.rounds(60) for it in operations for ask in asks_of(it)]
    texts = [bytes(ask.tokens) for ask in asks]
    pieces = [(at, text[-17:]) for at, text in enumerate(texts) if len(text) > 17]
    shifted = {at for at, piece in pieces for text in texts if text.find(piece) > len(texts[at]) - 17}
    assert len(shifted) > 1


@pytest.mark.parametrize("seed", range(4))
def test_some_prompts_have_a_page_behind_another_beginning(seed: int) -> None:
    """Both were asked of their namespace before, at the same places, and the length and the end are kept."""
    made = Generator(seed, longest=160, max_tokens=4, has_salts=True, can_reset=False)
    asks = [ask for operations in made.rounds(60) for it in operations for ask in asks_of(it)]
    crossed = [
        (ask.id, other.id)
        for at, ask in enumerate(asks)
        for other in asks[:at]
        for one in asks[:at]
        for page in (16, 32, 64)
        if {ask.salt} == {one.salt, other.salt}
        and len(ask.tokens) == len(other.tokens) > 2 * page
        and ask.tokens[page:] == other.tokens[page:]
        and ask.tokens[:page] == one.tokens[:page] != other.tokens[:page]
    ]
    assert len(crossed) > 1


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Judged by the command, told as a script of a shell; what is none is refused with its line."""
    path = tmp_path / "it.jsonl"
    history = History(HEAD, warm_and_cold(answer(-1.5, cached=3), answer(-1.0)))
    write_history(history, path)
    assert read_history(path) == history
    result = typed("probe", "--judge", path)
    assert result.exit_code == 1
    assert "V1  VIOLATED by vllm: an answer does not depend on what the cache holds" in result.stdout
    script = typed("probe", "--judge", path, "--as", "curl").stdout
    assert script.count("curl -sS") == 3
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    lines = lines_of(history)
    assert lines[1] == "2  request 2: 4 tokens, 4 as in request 1, 1 to produce, 3 cached"
    path.write_text(path.read_text(encoding="utf-8").replace('"of":[2]', '"of":[5]'), encoding="utf-8")
    refused("probe", "--judge", path, words=":4: request 5 is named, and no earlier step made it")
    path.write_text("{}\n", encoding="utf-8")
    with pytest.raises(TraceError, match="no head of a probe"):
        read_history(path)


def test_a_file_of_a_probe_goes_through_the_verbs_of_other_programs(tmp_path: Path) -> None:
    """`judge` reads it like `probe --judge`, `rerun` asks for a server, and another file is refused."""
    path = tmp_path / "it.jsonl"
    write_history(History(HEAD, warm_and_cold(answer(-1.5, cached=3), answer(-1.0))), path)
    found = [json.loads(typed(*words, path, "--json").stdout) for words in (("judge",), ("probe", "--judge"))]
    for document in found:
        document.pop("seconds")
    assert found[0] == found[1]
    assert found[0]["violation"]["law"] == "V1"
    refused("rerun", path, words="has requests of a server; name the server with --url")
    refused("rerun", path, "--adapter", "radix", words="is of pymllm probe; leave it out")
    refused("rerun", path, "--url", "http://127.0.0.1:1", words="no answer from this address")
    other = tmp_path / "other.jsonl"
    other.write_text('{"format": "other"}\n', encoding="utf-8")
    refused("rerun", other, "--url", "http://127.0.0.1:1", words="is no file of pymllm probe")


def test_the_schema_describes_each_line(tmp_path: Path) -> None:
    """A head and steps of every operation; an unknown operation is no line."""
    schema = jsonschema.Draft202012Validator(make_schema("probe-file"))
    look = Step(operation=Look(), figures=Figures(running=0))
    drop = Step(operation=Drop(Ask(3, PROMPT, 2, "a"), 0), dropped=PROMPT)
    steps = (*warm_and_cold(answer(-1.5, cached=3), answer(-1.0)), look, drop)
    lines = [json.loads(line) for line in dump_history(History(HEAD, steps)).splitlines()]
    assert len(lines) == 6
    for line in lines:
        schema.validate(line)
    lines[1]["operation"]["op"] = "guess"
    assert not schema.is_valid(lines[1])


def test_each_api_is_read_into_the_same_record() -> None:
    """Ids, log-probabilities best first, and cached tokens."""
    import httpx

    with httpx.Client() as http:
        top = [{"id": 7, "logprob": -0.5}, {"id": 8, "logprob": -2.0}]
        plain = {
            "tokens": [200, 7],
            "completion_probabilities": [{"id": 7, "top_logprobs": top}],
            "timings": {"cache_n": 3},
        }
        llama = LlamaCpp(http, "llama.cpp").read(PROMPT, plain)
        meta = {
            "output_token_logprobs": [[-0.5, 7, None]],
            "output_top_logprobs": [[[-2.0, 8, None], [-0.5, 7, None]]],
            "cached_tokens": 3,
        }
        sglang = Sglang(http, "sglang").read(PROMPT, {"meta_info": meta})
        choice = {"text": "x", "logprobs": {"tokens": ["x"], "top_logprobs": [{"y": -2.0, "x": -0.5}]}}
        usage = {"prompt_tokens_details": {"cached_tokens": 3}}
        openai = OpenAI(http, "other", "m").read(PROMPT, {"choices": [choice], "usage": usage})
        assert "cache_salt" not in OpenAI(http, "other", "m").body(PROMPT, 1, "s", is_cold=True)
        assert "cache_salt" in curl_script(
            History(HEAD, warm_and_cold(answer(), answer())), OpenAI(http, "vllm", "m"), "http://here"
        )
    assert llama.places == (Place(200), Place(7, ((7, -0.5), (8, -2.0))))
    assert sglang.places == llama.places[1:]
    assert openai.places == (Place("x", (("x", -0.5), ("y", -2.0))),)
    assert {it.cached for it in (llama, sglang, openai)} == {3}


def test_what_servers_say_of_impossible_tokens_is_left_out() -> None:
    """The least float of llama.cpp, -9999 of vLLM: they are no log-probabilities that could be compared."""
    import httpx

    with httpx.Client() as http:
        top = [{"id": 7, "logprob": 0.0}, {"id": 8, "logprob": -3.4028234663852886e38}]
        plain = {"tokens": [7], "completion_probabilities": [{"id": 7, "top_logprobs": top}]}
        assert LlamaCpp(http, "llama.cpp").read(PROMPT, plain).places == (Place(7, ((7, 0.0),)),)
        choice = {
            "token_ids": [7],
            "logprobs": {"top_logprobs": [{"token_id:7": 0.0, "token_id:8": -9999.0}]},
        }
        vllm = OpenAI(http, "vllm", "m").read(PROMPT, {"choices": [choice]})
    assert vllm.places == (Place(7, (("token_id:7", 0.0),)),)


def test_metrics_of_several_engines_are_summed() -> None:
    """By name, whatever the labels; llama.cpp's sums of prompts are others."""
    engine, other = "vllm", "llamacpp"
    running = [f'{engine}:num_requests_running{{e="{at}"}} {at}.0' for at in (1, 2)]
    text = "\n".join([*running, f"{engine}:prompt_tokens_total 5", ""])
    assert read_figures(text) == Figures(running=3, prompt_tokens=5)
    text = f"{other}:requests_processing 0\n{other}:prompt_tokens_total 5\n"
    assert read_figures(text) == Figures(running=0)
