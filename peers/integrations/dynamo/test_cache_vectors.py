"""Cache vectors on dynamo's `RadixTree`, the index behind its router: programs with what each step must be.

CPU only, no model, nothing to install. Beside this lie ``run_vectors.py``, ``known.json`` and the vectors in
the folder ``v1``; peers/integrations/README.md of pymllm says where they come from. Run it with pytest.

Copyright: the authors of pymllm. Licence: Apache-2.0.
"""

import importlib
import json
import sys
from pathlib import Path

import pytest
from dynamo._core import RadixTree

HERE = Path(__file__).resolve().parent
VECTORS, KNOWN = HERE / "v1", json.loads((HERE / "known.json").read_text(encoding="utf-8"))
sys.path.insert(0, str(HERE))
run_vectors = importlib.import_module("run_vectors")

DONE, NOT_THERE = {"is": "done"}, {"is": "not_there"}
SAYS_NOT_THERE = ("Failed to find parent block", "Failed to find block")


class Index:
    """A `RadixTree`, which is told of blocks by the events that workers send."""

    CLAIMS = frozenset({"early_exit", "inspect"})

    @staticmethod
    def fits(config):
        """Return whether all workers hash alike, since the tree promises nothing of other workers."""
        return config == {"own_hashes": False}

    def __init__(self, config):
        self.tree, self.workers, self.events = RadixTree(), set(), 0

    def apply(self, step, op):
        method = getattr(self, f"do_{op['op']}", None)
        return {"result": method(op) or DONE if method else {"is": "unsupported", "what": op["op"]}}

    def tell(self, worker, event):
        """Apply an event; what it names and the tree does not know is no error."""
        try:
            self.tree.apply_event(worker, json.dumps(event).encode())
        except RuntimeError as error:
            if not str(error).endswith(SAYS_NOT_THERE):
                return {"is": "failed", "error": type(error).__name__}
            return NOT_THERE
        return DONE

    def send(self, op, data):
        self.workers.add(op["worker"])
        self.events += 1
        return self.tell(op["worker"], {"event_id": self.events, "data": data, "dp_rank": 0})

    def do_store_blocks(self, op):
        blocks = [{"block_hash": block, "tokens_hash": tokens} for block, tokens in op["blocks"]]
        return self.send(op, {"stored": {"parent_hash": op.get("parent"), "blocks": blocks}})

    def do_remove_blocks(self, op):
        return self.send(op, {"removed": {"block_hashes": op["hashes"]}})

    def do_clear_worker(self, op):
        return self.send(op, "cleared")

    def do_drop_worker(self, op):
        self.tree.remove_worker(op["worker"])

    def do_find_blocks(self, op):
        found = self.tree.find_matches(op["tokens"], op.get("early", False)).scores
        return {"is": "leading", "workers": sorted([worker, count] for (worker, _), count in found.items())}

    def do_reset(self, op):
        """Clear every worker: the tree has no other way to become empty."""
        for worker in self.workers:
            self.tree.clear_all_blocks(worker)

    def do_rebuild(self, op):
        """Build a tree from what this one tells of itself."""
        events, self.tree = self.dump(), RadixTree()
        for event in events:
            assert self.tell(event["worker_id"], event["event"]) is DONE

    def dump(self):
        return [json.loads(event) for event in self.tree.dump_tree_as_events()]

    def do_inspect(self, op):
        """Show each block of each worker with its parent; in a run, the block before is the parent."""
        told = []
        for event in self.dump():
            stored = event["event"]["data"]["stored"]
            parents = [stored["parent_hash"], *(block["block_hash"] for block in stored["blocks"])]
            for block, parent in zip(stored["blocks"], parents, strict=False):
                names = {"worker": event["worker_id"], "hash": block["block_hash"]}
                told.append({**names, "tokens": block["tokens_hash"], "parent": parent})
        order = sorted(told, key=lambda it: (it["worker"], it["hash"], it["parent"] or -1))
        return {"is": "indexed", "blocks": order}


def cases():
    """Yield each vector whose needs are claimed."""
    for vector in list(map(json.loads, (VECTORS / "index.jsonl").read_text(encoding="utf-8").splitlines()))[
        1:
    ]:
        if set(vector["needs"]) <= Index.CLAIMS and Index.fits(vector["config"]):
            yield pytest.param(vector, id=vector["id"])


@pytest.mark.parametrize("vector", [*cases()])
def test_vector(vector):
    verdict, why = run_vectors.play(vector, Index(vector["config"]))
    if verdict == "skipped":
        pytest.skip(why)
    known = KNOWN.get(vector["id"])
    assert (verdict == "failed") == (known is not None), f"{vector['says']}; {why}; known: {known}"
