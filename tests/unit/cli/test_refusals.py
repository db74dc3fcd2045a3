"""Bad input of every command: one line, status 2, nothing done."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from tests.unit.cli.typed import refused

LINES = [
    ("reply", "'reply'"),
    ("adapters raddix", "no adapter 'raddix'"),
    ("adapters no_such_module_here:Cache", "adapter no_such_module_here:Cache: cannot import"),
    ("bisect none.jsonl --package sglang", "none.jsonl: cannot be read: No such file or directory"),
    ("bisect none.jsonl", "Missing option '--package'"),
    ("bisect x.json --package sglang", "x.json:1: "),
    (
        "bisect none.jsonl --package sglang --first latest",
        "--first: 'latest' is no version; write one such as",
    ),
    ("bisect none.jsonl --package sglang --timeout -1", "-1.0 is not in the range"),
    ("compare rows", "give 2 different implementations or more to compare; got 1."),
    ("compare rows rows", "give 2 different implementations or more to compare; rows was named 2 times."),
    ("compare rows radixx", "did you mean radix"),
    ("compare --command cat", "give 2 different implementations or more to compare; got 1."),
    ("compare rows --command no-such-program-here", "no-such-program-here"),
    ("faults hunt B999", "no fault 'B999'"),
    ("faults hunt --cabinet nowhere:TABLE", "cannot import nowhere"),
    ("faults hunt --cabinet tiny_cabinet:TABLE B01 b998", "no fault 'b998'"),
    ("faults hunt --page no/such/folder/faults.md", "there is no folder"),
    ("faults hunt --keep no/such/folder/results.jsonl", "there is no folder"),
    ("judge no/such.jsonl", "no/such.jsonl: cannot be read: No such file or directory"),
    ("judge .", ".: cannot be read: Is a directory"),
    ("judge x.json", "x.json:1: "),
    ("judge /dev/zero", "/dev/zero:1: longer than 16,777,216 bytes, the most of a line"),
    ("replay chatt", "'chatt' is no file and no workload (did you mean chat?)"),
    ("replay no/such/file", "'no/such/file' is no file and no workload"),
    ("replay ''", "'' is no file"),
    ("replay .", "x.json:1: not a conversation"),
    ("replay empty", "empty: the folder has no file *.jsonl, and no *.json of a conversation"),
    ("replay . --format mooncake", ".: the folder has no file *.jsonl"),
    ("replay", "Missing argument 'TRACE|NAME'"),
    ("replay chat agent", "unexpected extra argument"),
    ("replay chat --cash radix", "No such option '--cash'"),
    ("replay chat --cache radx", "no cache 'radx' (did you mean radix?)"),
    ("replay chat --cache block", "no cache 'block' (did you mean blocks?)"),
    ("replay chat --requests many", "'many' is not a whole number in"),
    ("replay chat --requests 1000001", "--requests': 1000001 is not in the range 1<=x<=1000000"),
    ("replay chat --page-size 0", "--page-size': 0 is not in the range"),
    ("replay chat --page-size 1073741824", "is not in the range 1<=x<=1073741823"),
    ("replay chat --page-size 10000", "--capacity 8192 holds no page of 10000"),
    ("replay chat --window 9223372036854775808", "is 9223372036854775808 tokens, not in 1..2147483647"),
    ("replay chat --window 4,capacity=0", "capacity: '0' is 0 tokens, not in 1..2147483647"),
    ("replay chat --window 4,slots=9", "'slots=9' is no setting here, which are capacity"),
    ("replay chat --capacity lots", "--capacity': 'lots' is not a number of tokens"),
    ("replay chat --capacity 15 --page-size 16", "--capacity 15 holds no page of 16"),
    ("replay chat --capacity 2k --page-size 1 --page-size 4000", "2000 holds no page of 4000 tokens"),
    ("replay adversarial --capacity 1G", "--capacity 1000000000 is too much for adversarial"),
    ("replay chat --swa-capacity 1k", "--window N,capacity=TOKENS"),
    ("replay chat --max-running 65537", "is not in the range 1<=x<=65536"),
    ("replay chat --chunk 2147483648", "--chunk': 2147483648 is not in the range 1<=x<=2147483647"),
    ("replay chat --iteration-ms 0", "0.0 is not in the range 0.01<=x<=86400000"),
    ("replay chat --iteration-ms 1e308 --json", "1e+308 is not in the range"),
    ("replay chat --check-every 2147483648", "is not in the range 0<=x<=2147483647"),
    ("replay t --block-tokens 2147483648", "--block-tokens': 2147483648 is not in the range 1<=x<="),
    ("replay chat --block-tokens 16", "--block-tokens: a named workload is no trace; leave it out"),
    (
        "replay chat --cache blocks --eviction-policy ref-zer",
        "there is no eviction policy 'ref-zer' (did you mean ref-zero?)",
    ),
    ("replay-serial chat --cache blocks", "--cache blocks caches the states of an engine"),
    ("replay chat --mamba-chunk-size 64", "--cache blocks,mamba-chunk-size=N"),
    ("replay chat --cache mamba,mamba-chunk-size=64", "is no setting here; there are none"),
    ("replay t --format moncake", "'moncake' is not one of auto, mooncake,"),
    ("replay t --format mooncake,tokenizer=a:b", "'tokenizer=a:b' is no setting here; there are none."),
    ("replay t --format weka,conversations=0", "conversations: 0 is not in the range 1<=x<=65536."),
    ("replay t --format weka,nested-times=never", "nested-times: 'never' is not one of auto, relative,"),
    ("replay-serial chat --window 4", "No such option '--window'"),
    ("replay chat --progress maybe", "'maybe' is not one of"),
    ("report", "Missing argument 'RUNS...'"),
    ("report nowhere", "'nowhere' does not exist"),
    ("report empty", "empty: no run in this folder; pymllm verify --store FOLDER puts one there"),
    ("report x.json", "x.json:1: not JSON"),
    ("report empty -o nowhere/x.html", "there is no folder nowhere; make it first."),
    ("report empty --format pdf", "'pdf' is not one of 'html'"),
    ("report pipe", "pipe: is no regular file, and only those are read"),
    ("diff pipe x.json", "pipe: is no regular file, and only those are read"),
    ("rerun none.jsonl", "none.jsonl: cannot be read"),
    ("schema traces", "'history', 'judgement', 'ledger'"),
    ("shrink none.jsonl", "none.jsonl: cannot be read"),
    ("shrink none.jsonl --seconds 0", "0.0 is not in the range"),
    ("shrink none.jsonl --output /no/such/folder/a.jsonl", "there is no folder /no/such/folder; make it"),
    ("goals --kind cells", "'cells' is not one of"),
    ("soak --adapter nothing", "no adapter 'nothing'"),
    ("soak --config {}", "--config is for one adapter"),
    ("soak --config {} --adapter rows --adapter radix", "--config is for one adapter"),
    ("soak --audit often", "is not a rate; write every, off, or 1/64"),
    ("soak --adapter nowhere:Rows --jobs 1", "cannot import nowhere"),
    ("soak --adapter rows --machine SlotMachine --jobs 1", "these adapters have RowMachine"),
    ("soak --page no/folder/x.md", "there is no folder"),
    ("resume nothing-here", "nothing-here: there is no ledger.jsonl"),
    ("merge", "Missing argument"),
    ("merge nothing-here", "does not exist"),
    (
        "verify --adapter raddix",
        "no adapter 'raddix' (did you mean radix",
    ),
    ("verify --adapter zzz", "no adapter 'zzz'; "),
    (f"verify --law {'qq' * 999}", f"no law '{'q' * 57}...'; docs/specification has"),
    ("verify --law Q9", "no law 'Q9'; docs/specification has all laws"),
    ("verify --law r12", "(did you mean R2 or R1 or R11?)"),
    ("verify --adapter rows --law S4 --jobs 1", "none of the adapters can test S4"),
    ("verify --profile soak", "'soak' is not one of 'dev', 'ci', 'deep'"),
    ("verify --profile depe", "'dev', 'ci', 'deep'. (did you mean deep?) (see pymllm verify --help)"),
    ("goals --kind prefx", "(did you mean prefix?)"),
    ("report . --format jnit", "(did you mean junit?)"),
    ("schema verfy", "Invalid value for 'NAME': 'verfy' is not one of "),
    ("verfy", "No such command 'verfy'. Did you mean 'verify'?"),
    ("verify --adpter radix", "No such option '--adpter'. Did you mean '--adapter'?"),
    ("verify --examples 0", "0 is not in the range"),
    ("verify --timeout -1", "-1.0 is not in the range"),
    ("verify --adapter toy.Toy", "no adapter 'toy.Toy' (did you mean toy:Toy?); "),
    ("verify --adapter json:JSONDecoder --jobs 1", "JSONDecoder is no adapter; derive one from pymllm"),
    ("verify --adapter json:Nobody --jobs 1", "adapter json:Nobody: json has no class 'Nobody'"),
    ("verify --adapter hashes --command no-such-program --jobs 1", "'no-such-program' cannot be started: No"),
    ("verify --jobs 0", "0 is not in the range"),
    ("verify --junit no/such/out.xml", "no/such/out.xml: there is no folder no/such; make it first"),
    ("verify --junit .", "is a directory"),
    ("verify --output /proc/x", "--output /proc/x: cannot write in /proc: "),
    ("verify --output /dev/null/x", "--output /dev/null/x: cannot write in /dev/null: "),
    ("verify --adapter rows --store x.json/store", "--store x.json/store: cannot write in"),
    ("verify radix", "unexpected extra argument"),
    ("verify my_adapter:MyCache", "(my_adapter:MyCache) (did you mean --adapter my_adapter:MyCache?)"),
    ("faults verify B999", "no fault 'B999'"),
    (
        "faults verify --cabinet tiny_cabinet:TABLE --adapter hashes",
        "none of 2 faults is about hashes; they are",
    ),
    ("faults verify --cabinet nowhere:TABLE", "cannot import nowhere"),
    ("check-protocol", "Missing argument"),
    ('check-protocol "\'"', "no closing quotation"),
    ("repeat 3 --config {}", "name one implementation, with --adapter or --command"),
    ("repeat 3 --adapter rows", "Missing option '--config'"),
    ("repeat three --config {} --adapter rows", "'three' is not a whole number in 0.."),
]


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(("line", "words"), LINES, ids=[line[:60] for line, _ in LINES])
def test_bad_input_is_one_line_and_status_2(
    line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1: the line names the value, the bound and what to do; nothing is written, and no pipe waited for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.json").write_text("{", encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    refused(*shlex.split(line), words=words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "pipe", "x.json"]
