"""The contenders, by the kind of their cache or allocator."""

from __future__ import annotations

import importlib.metadata

from peers.benchmarks import megatron, mllm, own, sglang, vllm
from peers.benchmarks.contender import Peer
from pymllm import __version__
from pymllm.instrument.peer_comparison import OURS, Contender
from pymllm_peers.projects import CHECKOUTS

CONTENDERS: dict[str, tuple[type[Peer], ...]] = {
    "prefix": (
        own.OwnRadix,
        sglang.SglangRadixPeer,
        sglang.SglangUnifiedPeer,
        sglang.SglangRustPeer,
        vllm.VllmBlocks,
        mllm.MllmRadixPeer,
    ),
    "slots": (
        own.OwnSlots,
        sglang.SglangSlots,
        vllm.VllmSlots,
        megatron.MegatronSlots,
        megatron.MegatronBlocks,
        mllm.MllmSlots,
    ),
    "hybrid": (own.OwnHybrid, sglang.SglangHybridPeer, sglang.SglangRustHybridPeer, mllm.MllmHybridPeer),
    "states": (own.OwnStateSlots, megatron.MegatronStateSlots),
    "state-copies": (own.OwnStateCopies, megatron.MegatronStateCopies),
}


def describe(peer: type[Peer], kind: str) -> Contender:
    """Name the version of a contender, or the reason why it cannot take part."""
    reason = peer.missing()
    return Contender(f"{peer.NAME} ({kind})", peer.PACKAGE, version_of(peer.PACKAGE), reason)


def version_of(package: str) -> str | None:
    """Return the version of a package: the running source for ours, or the commit of a checkout."""
    if package == OURS:
        return __version__
    for it in CHECKOUTS:
        if it.project == package:
            return it.commit if it.is_of(it.commit) else None
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def taking_part(kind: str, without: tuple[str, ...], only: tuple[str, ...]) -> list[type[Peer]]:
    """List the contenders that can play a scenario of a kind here; ours is always among them."""
    return [
        peer
        for peer in CONTENDERS[kind]
        if peer.NAME == OURS
        or (peer.NAME not in without and (not only or peer.NAME in only) and peer.missing() is None)
    ]
